"""One endpoint as the core sees it: its ledger, what scrapes say of it, and whether it can take a request."""

from math import inf

from gateway.admission.correction import Correction, History
from gateway.admission.decode_clock import DecodeClock
from gateway.admission.events import Capacity, EndpointId, Observed
from gateway.admission.gate import Closed, Gate
from gateway.admission.ledger import Ledger, Reservation
from gateway.admission.outlook import Outlook
from gateway.admission.policy import FORECAST_SHARE, FRESH_POLLS, UNSEEN_SHARE, Policy, Rule
from gateway.admission.predictor import Predictor
from gateway.admission.prefill import PrefillRate
from gateway.admission.prefixes import RecentPrefixes
from gateway.admission.request import Request, service
from gateway.admission.sequence_limit import SequenceLimit

GAUGE_LAG = 0.25
"""Seconds by which a gauge may trail the engine: it is set at the end of a step."""
UNBOUNDED = 2**63
MOST_SPARED = 0.3
"""Share of a cache that is kept free for flows within their share, at the most."""
MIDDLE = 0.5
"""Where among the ends that are thought of one is taken to be that is not sent yet."""


class Endpoint:
    """Everything admission knows of one endpoint."""

    def __init__(self, endpoint: EndpointId, capacity: Capacity, policy: Policy, predictor: Predictor) -> None:
        self.id = endpoint
        self.up = True
        self.gone = False
        self.reason: str | None = None
        """Why it is down."""
        self._clock = DecodeClock(policy.poll_interval)
        self.prefill = PrefillRate()
        self.ledger = Ledger(self._clock, self.prefill, capacity.block_size)
        self._predictor = predictor
        self._follow(policy)
        self.outlook = Outlook(self.ledger, predictor, self._peak)
        self._holding = False
        """Whether the forecast alone has kept somebody waiting since the last scrape."""
        self._was_busy = False
        self._settled_at = -inf
        self.restless = False
        """Whether time alone may change something here, see `next_change`."""
        self.peak_sequences = 0
        """The most that were on it at once."""
        self._restart(capacity)

    def _follow(self, policy: Policy) -> None:
        self._policy = policy
        self._fences = policy.rule is not Rule.FORECAST
        self._forecasts = policy.rule is not Rule.HYSTERESIS
        self._most = policy.kv_high if self._fences else 1.0
        """Share of the cache that no dispatch may take it beyond."""
        self._peak = min(self._most, FORECAST_SHARE)
        """Share of it that the forecast may fill. Inside the fence it keeps the gate from closing at all: every time
        that one closes, the cache runs down to `kv_low`."""

    def govern(self, policy: Policy) -> None:
        """Go by another policy from now on; `settle` is due."""
        self._follow(policy)
        self.outlook.level.fill(self._peak)
        self.limit.kv_low = policy.kv_low
        self._gate.govern(policy.kv_high, policy.kv_low)
        if not self._fences:
            self._gate.update(None)

    def _restart(self, capacity: Capacity) -> None:
        """Forget what was observed: a process that came up anew shares nothing with the one before."""
        policy = self._policy
        self.capacity = capacity
        self._paging = (capacity.block_size, capacity.shares_prefix)
        room = UNBOUNDED if capacity.kv_blocks is None else capacity.kv_blocks * capacity.block_size
        self.longest_prompt = min(capacity.max_model_len, room) - 1
        """The most prompt tokens it can serve: one more has to fit its length, and its blocks."""
        self._history = History(2 * FRESH_POLLS * policy.poll_interval)
        self._note(0.0)
        self._correction = Correction(policy.poll_interval)
        self._gate = Gate(policy.kv_high, policy.kv_low, policy.poll_interval)
        self.limit = SequenceLimit(self.capacity.max_num_seqs, policy.kv_low)
        self.observed: Observed | None = None
        blocks = self.capacity.kv_blocks
        self.recent = RecentPrefixes(None if blocks is None else blocks * self.capacity.block_size)

    def came_up(self, capacity: Capacity) -> None:
        """It takes traffic, with this capacity."""
        if not self.up or capacity != self.capacity:
            self.ledger.rebase(capacity)
            self._restart(capacity)
        self.up, self.gone, self.reason = True, False, None

    def went_down(self, reason: str) -> None:
        """It takes no new traffic; what runs on it reports its own end."""
        self.up, self.reason = False, reason

    @property
    def decode_rate(self) -> float:
        """Tokens per second of one running sequence; 0 until measured."""
        return self._clock.rate

    @property
    def idle(self) -> bool:
        """Whether nothing of ours is on it."""
        return not self.ledger.sequences

    def usage(self, now: float) -> float | None:
        """Effective usage of its KV cache: by the ledger, corrected by what the gauge says.

        Where its size is unknown, the gauge while fresh; else None.
        """
        blocks = self.capacity.kv_blocks
        if blocks is not None:
            return max(0.0, self.ledger.used + self._correction.read(now)) / blocks
        observed = self.observed
        if observed is None or now - observed.sampled_at > FRESH_POLLS * self._policy.poll_interval:
            return None
        return observed.kv_usage

    def refusal(self, request: Request, now: float, *, peek: bool = False) -> Closed | None:
        """Why the request, whose prompts fit it, may not be dispatched to it now; None where it may.

        An idle endpoint takes whatever fits it, also what exceeds a limit, or that would wait for ever.
        `peek` leaves no trace: nothing is decided, only asked.
        """
        gate = self._gate
        if now < gate.busy_until:
            return Closed.BUSY
        sequences = self.ledger.sequences
        if not sequences:
            return None
        limit = self.limit.value
        if limit is not None and sequences + request.sequences > limit:
            return Closed.SEQUENCES
        closed = gate.closed(now)
        blocks = self.capacity.kv_blocks
        return closed if closed is not None or blocks is None else self._shortage(request, blocks, now, peek=peek)

    def _shortage(self, request: Request, blocks: int, now: float, *, peek: bool) -> Closed | None:
        """Which limit of a cache of so many blocks the request would exceed."""
        first = self.first_blocks(request)
        unseen = self.ledger.unseen
        if unseen and unseen + first > UNSEEN_SHARE * blocks:
            return Closed.PREFILL
        beyond = self._correction.read(now)
        free = self._most * blocks - max(0.0, self.ledger.used + beyond) - first
        if free < 0:
            return Closed.KV
        if self._forecasts:
            free = min(free, self._peak * blocks - (self._peak_with(request, first, now, peek=peek) + beyond))
            if free < 0:
                self._holding = self._holding or not peek
                return Closed.FORECAST
        if request.spare and free < min(request.spare / self.capacity.block_size, MOST_SPARED * blocks):
            return Closed.SHARE
        return None

    def deficit(self, request: Request, now: float, *, peek: bool) -> float:
        """Tokens that must become free before the request fits. `peek` leaves no trace."""
        blocks = self.capacity.kv_blocks
        if blocks is None:
            return 0.0
        first = self.first_blocks(request)
        beyond = self._correction.read(now)
        short = max(0.0, self.ledger.used + beyond) + first - self._most * blocks
        if self._forecasts:
            short = max(short, self._peak_with(request, first, now, peek=peek) + beyond - self._peak * blocks)
        return max(0.0, short) * self.capacity.block_size

    def first_blocks(self, request: Request) -> int:
        """Blocks that the request would add with its first token: those that others in flight hold are there."""
        blocks, prefix = request.footprint(self._paging).first, request.arrival.prefix
        if prefix and self.capacity.shares_prefix:
            blocks -= self.ledger.sharable(prefix) // self.capacity.block_size
        return blocks

    def forecast(self, now: float) -> float:
        """Blocks that it will hold at its fullest. Leaves no trace."""
        block = self.capacity.block_size
        return self.outlook.peak(block, now) / block + self._correction.read(now)

    def forecast_with(self, request: Request, now: float, *, peek: bool = False) -> float:
        """The same with the request. `peek` leaves no trace."""
        return self._peak_with(request, self.first_blocks(request), now, peek=peek) + self._correction.read(now)

    def _peak_with(self, request: Request, first: int, now: float, *, peek: bool) -> float:
        """Blocks that the ledger will hold at its fullest with the request, which would add so many at first."""
        block = self.capacity.block_size
        row = (self.expected(request) - 1, first * block, request.sequences)
        prefix = request.arrival.prefix
        other = self.ledger.sole_sharer(prefix) if prefix and self.capacity.shares_prefix else None
        if other is None:
            return self.outlook.peak_with(row, block, now, peek=peek) / block
        return self.outlook.peak_sharing(row, other, self.ledger.sharable(prefix), block) / block

    def expected(self, request: Request) -> int:
        """Tokens that each sequence of the request is predicted to end with here."""
        return request.expected(self._predictor, self.outlook.level.at(MIDDLE, self.ledger.sequences))

    def reserve(self, request: Request, now: float) -> Reservation:
        """Enter a request that is being dispatched here."""
        capacity, arrival = self.capacity, request.arrival
        footprint = request.footprint(self._paging)
        prefix = arrival.prefix if capacity.shares_prefix else ()
        cached = self.cached(request)
        reservation = self.ledger.reserve(arrival, request.kind, footprint, now, prefix=prefix, cached=cached)
        self.peak_sequences = max(self.peak_sequences, self.ledger.sequences)
        self.outlook.came(reservation, capacity.block_size)
        if capacity.shares_prefix:
            self.recent.sent(prefix, tokens=request.size)
        self.settle(now)
        return reservation

    def cached(self, request: Request) -> int:
        """Prompt tokens of the request that are probably in its prefix cache."""
        prefix = request.arrival.prefix
        if not prefix or not self.capacity.shares_prefix:
            return 0
        return max(self.recent.cached(prefix), self.ledger.sharable(prefix))

    def prefill_seconds(self, request: Request) -> float:
        """How long the request takes to its first token, alone; 0 while nothing is known."""
        return self.prefill.seconds(request.size - self.cached(request))

    @property
    def service_rate(self) -> float | None:
        """Tokens of service per second that those in flight are taking, by their predictions; None while unknown."""
        rate = self._clock.rate
        if not rate or not len(self.ledger):
            return None
        return rate * sum(
            service(r.demand.prompt_tokens, (expected := r.expected) * r.sequences) / expected for r in self.ledger
        )

    def release(self, reservation: Reservation, completion_tokens: int | None, now: float, *, aborted: bool) -> None:
        """A request of ours has left it."""
        if aborted:
            self.ledger.abort(reservation, now)
            self.restless = True
        else:
            self.ledger.release(reservation, completion_tokens, now)
        if self.capacity.shares_prefix:
            self.recent.sent((), tokens=completion_tokens or reservation.seen)
        self.outlook.left()

    def hold(self, now: float) -> None:
        """It refused a request for lack of room."""
        self._gate.hold(now)
        self.restless = True

    def held(self, now: float) -> bool:
        """Whether it is left alone after such a refusal."""
        return now < self._gate.busy_until

    @property
    def next_change(self) -> float:
        """When time alone may next free something here: an aborted request's blocks, or the endpoint itself.

        Infinity unless `restless`.
        """
        busy_until = self._gate.busy_until
        return min(self.ledger.next_abort_expiry, inf if busy_until <= self._settled_at else busy_until)

    def settle(self, now: float) -> None:
        """Bring the account up to this time, and the gate after it. Due after every change, and before asking."""
        ledger = self.ledger
        self._settled_at = now
        ledger.settle(now)
        busy = ledger.sequences > 0
        if self._was_busy and not busy:
            self._correction.reset()
        self._was_busy = busy
        self._note(now)
        if self._fences:
            self._gate.update(self.usage(now))
        if self.restless:
            self.restless = self.next_change < inf

    def settle_by(self, now: float) -> None:
        """The same, where that was not done at this very time: every change is followed by it."""
        if self._settled_at != now:
            self.settle(now)

    def observe(self, sample: Observed, now: float) -> None:
        """Take a scrape. One that is equal in everything to the last tells nothing: its gauges are frozen.

        While nothing of ours is there, only an engine that visibly works for others is believed.
        """
        previous = self.observed
        if previous is not None and sample.sampled_at <= previous.sampled_at:
            return
        self.settle(now)  # what nobody reports has grown since the last event
        self.observed = sample
        self._gate.scraped(sample.sampled_at)
        self._clock.observe(sample, now)
        if previous is None or not _same(previous, sample):
            account = self._history.since(sample.sampled_at - GAUGE_LAG)
            blocks = self.capacity.kv_blocks
            if blocks is not None and sample.kv_usage is not None and (account.held or _works(previous, sample)):
                self._correction.sample(
                    sample.kv_usage * blocks, account, sample.sampled_at, waiting=bool(sample.waiting)
                )
            if sample.waiting is not None:
                self._gate.sample_waiting(sample.waiting, account.unconfirmed_sequences, sample.sampled_at)
            self.limit.observe(sample, self.ledger.sequences)
        self.settle(now)
        usage = self.usage(now)
        if usage is not None:
            self.outlook.level.observe(usage, sample.preemptions, now, holding=self._holding)
            self._holding = False

    def _note(self, now: float) -> None:
        ledger = self.ledger
        saved = ledger.saved
        self._history.record(now, max(0, ledger.confirmed - saved), ledger.held - saved, ledger.unconfirmed_sequences)

    def closed_by(self, now: float) -> tuple[Closed, ...]:
        """Why it takes no more; nothing while its gate is open."""
        reasons = self._gate.reasons(now)
        limit = self.limit.value
        if limit is not None and self.ledger.sequences >= limit:
            reasons += (Closed.SEQUENCES,)
        blocks = self.capacity.kv_blocks
        if blocks is not None and self.ledger.unseen >= UNSEEN_SHARE * blocks:
            reasons += (Closed.PREFILL,)
        return reasons


def _same(one: Observed, other: Observed) -> bool:
    return (
        one.kv_usage == other.kv_usage
        and one.running == other.running
        and one.waiting == other.waiting
        and one.generation_tokens == other.generation_tokens
        and one.preemptions == other.preemptions
    )


def _works(previous: Observed | None, sample: Observed) -> bool:
    """Whether tokens were generated between two scrapes. A gauge stays where its last step left it."""
    return previous is not None and previous.generation_tokens != sample.generation_tokens
