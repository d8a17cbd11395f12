"""The record of one endpoint: its ledger, its scrapes, its forecast and its gate."""

from math import inf

from gateway.admission.account.decode_clock import DecodeClock
from gateway.admission.account.drain_rate import DrainRate
from gateway.admission.account.gauge_correction import Account, Correction, History
from gateway.admission.account.ledger import Ledger, Reservation
from gateway.admission.account.prefill import PrefillRate
from gateway.admission.account.prefixes import RecentPrefixes
from gateway.admission.events import Capacity, EndpointDown, EndpointId, EndpointUp, Observed
from gateway.admission.placing.gate import Gate
from gateway.admission.placing.presence import TRANSITIONS, EndpointEvent, Presence
from gateway.admission.placing.request import RequestRecord, service
from gateway.admission.placing.sequence_limit import SequenceLimit
from gateway.admission.policy import Bounds, Policy
from gateway.admission.prediction.outlook import Outlook
from gateway.admission.prediction.predictor import Predictor
from gateway.admission.tuning import TUNING

UNBOUNDED = 2**63


class EndpointRecord:
    """Everything that admission knows of one endpoint."""

    def __init__(self, endpoint: EndpointId, capacity: Capacity, policy: Policy, predictor: Predictor) -> None:
        self.id = endpoint
        self.presence = Presence.LIVE
        self.reason: str | None = None
        """Why it is not live."""
        self._clock = DecodeClock(policy.poll_interval)
        self.prefill = PrefillRate()
        self.ledger = Ledger(self._clock, self.prefill, capacity.block_size, holds_limit=capacity.holds_limit)
        self._predictor = predictor
        self.capacity = capacity
        self._follow(policy)
        self.outlook = Outlook(self.ledger, predictor, self.forecast_limit)
        self.all_cold = True
        """Whether all live endpoints of the pool are `cold`."""
        self.beside_sound = False
        """Whether another live endpoint, with room for prompts as long, does not fail; see `failing`."""
        self.delivering = 0
        """Requests that it is done with, whose answers are still on their way to their clients."""
        self._was_busy = False
        self._advanced_to = -inf
        self.next_change = inf
        """Next time at which an aborted request's blocks may be freed, or the time ends in which it is busy or spared,
        without any event."""
        self.peak_sequences = 0
        """Most sequences in flight at once so far."""
        self._restart(capacity)

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        """The policy in force; rules may read it."""
        self.grows = not self.capacity.holds_limit
        """Whether its requests hold more blocks with each token."""
        self._fresh = TUNING.fresh_polls * policy.poll_interval
        self._gated = self.grows and policy.bounds is not Bounds.FORECAST
        self.forecasts = self.grows and policy.bounds is not Bounds.HYSTERESIS
        self.max_usage = policy.kv_high if self._gated else 1.0
        """The usage of the cache that no dispatch may exceed."""
        self.forecast_limit = min(self.max_usage, TUNING.forecast_share)
        """Share of the cache that the forecast may fill. Within `kv_high` this keeps the gate from closing: each time
        it closes, the cache runs down to `kv_low`."""

    def govern(self, policy: Policy) -> None:
        """Apply another policy. `advance` is due afterwards."""
        self._follow(policy)
        self.outlook.quantiles.fill(self.forecast_limit)
        self.sequence_limit.kv_low = policy.kv_low
        self.gate.govern(policy.kv_high, policy.kv_low)
        if not self._gated:
            self.gate.update(None)

    def _restart(self, capacity: Capacity) -> None:
        """Forget all observations: a new engine process shares nothing with the one before."""
        policy = self.policy
        self._history = History(2 * TUNING.fresh_polls * policy.poll_interval)
        self._note(0.0)
        self._compared: tuple[Observed, Account] | None = None
        """The scrape that the correction took last, and the account at its time."""
        self.gate = Gate(policy.kv_high, policy.kv_low, policy.poll_interval)
        self.observed: Observed | None = None
        self._computed = 0.0
        """Sequences of ours without a token that the engine computed at the last scrape: all but those that waited."""
        self._waited_at = -inf
        """When requests waited in it, at last."""
        self.ledger.begins = DrainRate()
        self.cold = True
        """Whether it has generated nothing since it came up. Its first step may compile, which takes seconds."""
        self.failures = 0
        """Requests that it failed on since the last token that spoke for it (`note_token`)."""
        self.fails_since = inf
        """When it failed on the first of them; inf if a later request had a token."""
        self._spared_until = -inf
        self._resize(capacity)

    def _resize(self, capacity: Capacity) -> None:
        """Take this capacity. The last scrape counts against it by the account of its own time, not by that of now."""
        policy = self.policy
        self.capacity = capacity
        self._follow(policy)
        self._paging = (capacity.block_size, capacity.shares_prefix)
        room = UNBOUNDED if capacity.kv_blocks is None else capacity.kv_blocks * capacity.block_size
        self.longest_prompt = min(capacity.max_model_len, room) - 1
        """Most prompt tokens that it can serve: one more token must fit its model length and its blocks."""
        self._correction = Correction(policy.poll_interval, exact=not self.grows)
        if self._compared is not None:
            self._compare(*self._compared)
        self.sequence_limit = SequenceLimit(self.capacity.max_num_seqs, policy.kv_low)
        blocks = self.capacity.kv_blocks
        self.recent = RecentPrefixes(None if blocks is None else blocks * self.capacity.block_size)

    def apply(self, event: EndpointEvent) -> None:
        """Change presence by the table. An event that the table does not list changes nothing."""
        before = self.presence
        after = TRANSITIONS.get((before, type(event)))
        if after is None:
            return
        self.presence = after
        if isinstance(event, EndpointUp):
            self.reason = None
            if before is not Presence.LIVE or event.capacity != self.capacity:
                self.ledger.rebase(event.capacity)
                if event.observed is None:
                    self._restart(event.capacity)
                else:
                    self._resize(event.capacity)
        else:
            self.reason = event.reason if isinstance(event, EndpointDown) else "removed"

    @property
    def live(self) -> bool:
        """Whether it takes traffic."""
        return self.presence is Presence.LIVE

    @property
    def decode_rate(self) -> float:
        """Tokens per second of one running sequence; 0 until measured."""
        return self._clock.rate

    @property
    def idle(self) -> bool:
        """Whether none of our requests is on it."""
        return not self.ledger.sequences

    @property
    def carried(self) -> int:
        """Requests of ours that need it still, if only to send the rest of their answers."""
        return len(self.ledger) + self.delivering

    def usage(self, now: float) -> float | None:
        """Effective usage of its KV cache: the ledger, corrected by the gauge.

        If the size of the cache is unknown: the gauge while it is fresh, else None.
        """
        blocks = self.capacity.kv_blocks
        if blocks is not None:
            used = self.ledger.used + self._correction.read(now)
            return used / blocks if used > 0.0 else 0.0
        observed = self.observed
        if observed is None or now - observed.sampled_at > self._fresh:
            return None
        return observed.kv_usage

    def unaccounted(self, now: float) -> float:
        """Blocks in use that the ledger does not know of, by the gauge; negative if the ledger counts too many."""
        return self._correction.read(now)

    def first_blocks(self, request: RequestRecord) -> int:
        """Blocks that the request would add with its first token, beyond those that others in flight hold."""
        if not self.grows:
            whole = request.footprint(self._paging).blocks(max(1, request.arrival.demand.max_tokens))
            return whole if self.capacity.kv_blocks is None else min(whole, self.capacity.kv_blocks)
        blocks, prefix = request.footprint(self._paging).first, request.arrival.prefix
        if prefix and self.capacity.shares_prefix:
            blocks -= self.ledger.sharable(prefix) // self.capacity.block_size
        return blocks

    def forecast(self, now: float) -> float:
        """Predicted peak as of now, blocks."""
        block = self.capacity.block_size
        return self.outlook.peak_now(block) / block + self._correction.read(now)

    def forecast_with(self, request: RequestRecord, now: float) -> float:
        """Predicted peak with the request, blocks."""
        return self.peak_with(request, self.first_blocks(request)) + self._correction.read(now)

    def peak_with(self, request: RequestRecord, first: int) -> float:
        """Predicted peak of the ledger with the request, which would add `first` blocks with its first token."""
        block = self.capacity.block_size
        row = (self.expected_length(request) - 1 if self.grows else 0, first * block, request.sequences)
        prefix = request.arrival.prefix
        other = self.ledger.sole_sharer(prefix) if prefix and self.capacity.shares_prefix else None
        if other is None:
            return self.outlook.peak_with(row) / block
        return self.outlook.peak_sharing(row, other, self.ledger.sharable(prefix), block) / block

    def use_until_end(self, request: RequestRecord, first: int) -> float | None:
        """Most blocks of the ledger up to the last token that the request may have; None if it may raise the peak.

        It would add `first` blocks with its first token.
        """
        block, prefix = self.capacity.block_size, request.arrival.prefix
        if prefix and self.capacity.shares_prefix and self.ledger.sole_sharer(prefix) is not None:
            return None  # what they share would end with the other one
        longest = self._predictor.longest(request.kind, max(1, request.arrival.demand.max_tokens))
        tokens = self.outlook.until_end((longest - 1, first * block, request.sequences))
        return None if tokens is None else tokens / block

    def expected_length(self, request: RequestRecord) -> int:
        """Expected length of each sequence of the request here, tokens."""
        quantile = self.outlook.quantiles.at(TUNING.waiting_draw, self.ledger.sequences)
        return request.expected_length(self._predictor, quantile)

    def final_tokens(self, request: RequestRecord) -> int:
        """Tokens that the request is expected to hold here at its end."""
        return request.size + self.expected_length(request) * request.sequences

    def reserve(self, request: RequestRecord, now: float) -> Reservation:
        """Enter a request as it is dispatched here."""
        capacity, arrival = self.capacity, request.arrival
        footprint = request.footprint(self._paging)
        prefix = arrival.prefix if capacity.shares_prefix else ()
        cached = self.cached(request)
        reservation = self.ledger.reserve(arrival, footprint, now, prefix=prefix, cached=cached)
        self.peak_sequences = max(self.peak_sequences, self.ledger.sequences)
        self.outlook.sent(reservation, request.kind, capacity.block_size)
        if capacity.shares_prefix:
            self.recent.sent(prefix, tokens=request.size)
        if self.fails and not request.failures:
            self._spare(now)
        self.advance(now)
        return reservation

    def cached(self, request: RequestRecord) -> int:
        """Prompt tokens of the request that are probably in the prefix cache."""
        prefix = request.arrival.prefix
        if not prefix or not self.capacity.shares_prefix:
            return 0
        return max(self.recent.cached(prefix), self.ledger.sharable(prefix))

    def prefill_seconds(self, request: RequestRecord) -> float:
        """Predicted seconds to the request's first token, behind what waits in it; 0 while nothing is known."""
        return self.engine_backlog(self._advanced_to) + self.prefill.seconds(request.size - self.cached(request))

    def engine_backlog(self, now: float) -> float:
        """Seconds until the engine has begun with all our prompts that wait in it; 0 where that is not known."""
        ledger = self.ledger
        waiting = ledger.unconfirmed_sequences - self._computed
        if waiting <= 0 or now - self._waited_at > self._fresh or not (rate := ledger.begins.rate(now)):
            return 0.0
        return ledger.unconfirmed_tokens * waiting / ledger.unconfirmed_sequences / rate

    @property
    def full(self) -> bool:
        """Whether it runs as many sequences as its limit."""
        limit = self.sequence_limit.value
        return limit is not None and self.ledger.sequences >= limit

    def generation_rate(self, now: float) -> float:
        """Tokens of service per second that its running sequences of ours generate; 0 while unknown."""
        observed, running = self.observed, self.ledger.sequences
        if observed is None or now - observed.sampled_at > self._fresh:
            return 0.0
        if observed.running is not None:
            running = min(running, observed.running)
        return TUNING.output_weight * self._clock.rate * running

    @property
    def service_rate(self) -> float | None:
        """Tokens of service per second that requests in flight take, by their expected lengths; None if unknown."""
        rate = self._clock.rate
        if not rate or not len(self.ledger):
            return None
        expected = self.outlook.expected_length
        return rate * sum(
            service(r.demand.prompt_tokens, (tokens := expected(r)) * r.sequences) / tokens for r in self.ledger
        )

    def release(self, reservation: Reservation, completion_tokens: int | None, now: float, *, aborted: bool) -> None:
        """Take out a request of ours that has left it."""
        if aborted:
            self.ledger.abort(reservation, now)
            self.next_change = now
        else:
            self.ledger.release(reservation, completion_tokens, now)
        if completion_tokens or reservation.reported:
            self.cold = False
        if self.capacity.shares_prefix:
            self.recent.sent((), tokens=completion_tokens or reservation.reported)
        self.outlook.left(reservation, aborted=aborted)

    def note_busy(self, now: float) -> None:
        """Note that its engine refused a request as it is busy."""
        self.gate.note_busy(now, self.ledger.sequences)
        self.next_change = now

    def note_failure(self, now: float) -> None:
        """Note that it failed on a request, which had no token."""
        self.failures += 1
        self.fails_since = min(self.fails_since, now)
        if self.fails:
            self._spare(now)

    def note_token(self, sent_at: float, now: float) -> None:
        """Note that a request that was sent at that time has a token.

        One from before the failures speaks for it only at first: what stands before an engine may turn away all that
        is new and let streams go on.
        """
        if sent_at >= self.fails_since:
            self.failures, self.fails_since = 0, inf
        elif now < self.fails_since + TUNING.failing_span:
            self.failures = 0

    @property
    def fails(self) -> bool:
        """Whether it failed on all of its latest requests. As the emptiest of the pool it would get all that come."""
        return self.failures >= TUNING.failing_after

    def failing(self, now: float) -> bool:
        """Whether it fails and gets no request now: for a time after each failure, and after each that tries it."""
        return self.fails and now < self._spared_until

    def _spare(self, now: float) -> None:
        self.next_change = self._spared_until = now + TUNING.failing_span

    def busy_for(self, now: float) -> float:
        """Seconds for which it gets no requests because its engine is busy; 0 or less if it may have one."""
        return self.gate.busy_until - now if self.ledger.sequences >= self.gate.full_with else 0.0

    def advance(self, now: float) -> None:
        """Bring the account and then the gate up to this time. Due after every change and before every question."""
        ledger = self.ledger
        self._advanced_to = now
        ledger.advance(now)
        busy = ledger.sequences > 0
        if self._was_busy and not busy and self.grows:
            self._correction.reset()
            self._compared = None
        self._was_busy = busy
        self._note(now)
        if self._gated:
            self.gate.update(self.usage(now))
        if self.next_change < inf:
            ends = [until for until in (self.gate.busy_until, self._spared_until) if until > now]
            self.next_change = min(ledger.next_abort_expiry, *ends, inf)

    def advance_once(self, now: float) -> None:
        """Call `advance`, unless that was done for this very time. Every change calls it, so nothing is missed."""
        if self._advanced_to != now:
            self.advance(now)

    def refresh_forecast(self, now: float) -> bool:
        """Renew the forecast if it is outdated; return whether it was. Due before the forecast declines a request."""
        outdated = self.outlook.outdated(now)
        if outdated:
            self.outlook.refresh(self.capacity.block_size, now)
        return outdated

    def observe(self, sample: Observed, now: float) -> None:
        """Take a scrape. One that equals the last in every value says nothing: its gauges are frozen.

        While none of our requests is there, a gauge that stays where the last step left it counts only if the engine
        visibly works for others. That of an engine whose requests hold their whole limit follows its requests, and
        stays where it is while those read their prompts.
        """
        previous = self.observed
        if previous is not None and sample.sampled_at <= previous.sampled_at:
            return
        self.advance(now)  # requests that do not report have grown since the last event
        self.observed = sample
        if sample.generation_tokens is None or sample.generation_tokens > 0:
            self.cold = False
        self.gate.scraped(sample.sampled_at)
        self._clock.observe(sample, now)
        new = previous is None or not _same(previous, sample)
        since = sample.sampled_at - TUNING.gauge_lag
        account = self._history.since(since)
        if not self.grows or (new and (account.held or _works(previous, sample))):
            self._compare(sample, account)
        unconfirmed, just_sent = self.ledger.unconfirmed_sequences, self.ledger.unconfirmed_since(since)
        if sample.waiting is not None:
            ours = sample.waiting * self.capacity.share
            self._computed = max(0.0, unconfirmed - just_sent - ours)
            if ours > just_sent and not self.cold:
                self._waited_at = sample.sampled_at
                self.ledger.begins.pressed(now)
        if new:
            if sample.waiting is not None:
                self.gate.sample_waiting(sample.waiting, account.unconfirmed_sequences, sample.sampled_at)
            self.sequence_limit.observe(sample, self.ledger.sequences, unconfirmed, just_sent)
        self.advance(now)
        usage = self.usage(now)
        if usage is not None:
            self.outlook.quantiles.observe(usage, sample.preemptions, now)

    def _compare(self, sample: Observed, account: Account) -> None:
        blocks = self.capacity.kv_blocks
        if blocks is None or sample.kv_usage is None:
            return
        # If this is a share of an endpoint, the gauge counts all shares. Take this one's part of it, but at least what
        # our requests surely hold, and at most all.
        part, whole = sample.kv_usage * blocks, sample.kv_usage * blocks / self.capacity.share
        observed = min(max(part, account.held), whole)
        self._correction.sample(observed, account, sample.sampled_at, waiting=bool(sample.waiting))
        self._compared = sample, account

    def _note(self, now: float) -> None:
        ledger = self.ledger
        saved, confirmed = ledger.saved_blocks, ledger.confirmed
        certain = confirmed - saved if confirmed > saved else 0
        self._history.record(now, certain, ledger.held - saved, ledger.unconfirmed_sequences)


def _same(one: Observed, other: Observed) -> bool:
    return (
        one.kv_usage == other.kv_usage
        and one.running == other.running
        and one.waiting == other.waiting
        and one.generation_tokens == other.generation_tokens
        and one.preemptions == other.preemptions
    )


def _works(previous: Observed | None, sample: Observed) -> bool:
    """Whether the engine generated tokens between two scrapes. A gauge keeps the value of the last step."""
    return previous is not None and previous.generation_tokens != sample.generation_tokens
