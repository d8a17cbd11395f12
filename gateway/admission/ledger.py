"""The account of one endpoint's KV cache: what every request in flight there holds now."""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from math import inf

from gateway.admission.decode_clock import DecodeClock
from gateway.admission.events import Arrived, Capacity, Prefix
from gateway.admission.footprint import Footprint
from gateway.admission.predictor import Kind
from gateway.admission.prefill import PrefillRate
from gateway.admission.prefixes import SharedPrefixes

ABORT_BOUND = 1.0
"""Seconds after which an aborted request is taken to have left the engine, whether or not a step was seen."""
REPORT_SPAN = 0.05
"""Seconds that one report of progress may reach back: what is reported sooner after an abort may precede it."""
STREAM_PACE = 0.8
"""How fast the decode clock counts for a stream, whose own reports are better: its noise must not run ahead of
what is seen, yet tokens that come merged into one delta or are held back must not stay uncounted."""
LOOK_AGAIN = 64
"""Tokens after which the clock looks again at a request that reports; one that does not is looked at exactly at
every edge of its blocks."""


class Phase(Enum):
    """How sure we are that a reservation's blocks are in use."""

    UNCONFIRMED = auto()
    """No token yet: it may still wait inside the engine."""
    CONFIRMED = auto()
    ABORTING = auto()


class Reservation:
    """What one request in flight holds."""

    __slots__ = (
        "aborted_at",
        "backlog",
        "base",
        "computed",
        "demand",
        "dispatched",
        "draw",
        "due_tokens",
        "edge",
        "footprint",
        "generated",
        "held",
        "kind",
        "lengths",
        "limit",
        "news",
        "origin",
        "pace",
        "phase",
        "prefix",
        "review",
        "seen",
        "sent_at",
        "sequences",
        "shared",
        "streamed",
        "ticket",
        "unseen",
    )

    def __init__(
        self,
        arrival: Arrived,
        kind: Kind,
        footprint: Footprint,
        *,
        prefix: Prefix,
        computed: int,
        reading: float,
        now: float,
    ) -> None:
        demand = arrival.demand
        self.demand = demand
        self.footprint = footprint
        self.streamed = arrival.streamed
        self.sequences = demand.sequences
        self.limit = max(1, demand.max_tokens)
        """Most tokens a sequence may generate."""
        self.kind = kind
        self.prefix = prefix
        self.sent_at = now
        self.dispatched = reading
        """The decode clock at its dispatch."""
        self.computed = computed
        """Prompt tokens that the engine has to compute for it: those it has not cached."""
        self.backlog = 0
        """All that it had to compute up to this one's first token, when it was sent."""
        self.shared = 0
        """Tokens of its prompt that another request in flight holds too."""
        self.lengths: list[int] = []
        """Tokens that a sequence may end with, one as likely as the other, in order."""
        self.review = 0
        """From how many tokens on these are predicted anew."""
        self.draw = 0.0
        """Where they are in their parts of what is thought of: from 0, the shortest, to 1."""
        self.phase = Phase.UNCONFIRMED
        self.unseen = 0
        """What of it counts as `Ledger.unseen`."""
        self.seen = 0
        """Tokens the relay reported, over all sequences."""
        self.generated = 1
        """Tokens per sequence it is taken to hold room for. One from the start: prefill ends with the first."""
        self.held, edge = footprint.growth(1)
        """Blocks, those it shares with others included."""
        self.edge: float = edge if edge <= self.limit else inf
        """Tokens per sequence at which it holds more blocks than now; infinity where that is beyond its limit."""
        self.news = 0.0
        """Tokens over all sequences from which on a report of progress changes the account."""
        self.origin = 0.0
        """The decode clock when its tokens started to be counted by the clock."""
        self.base = 0
        """Tokens per sequence it had then."""
        self.pace = 1.0
        self.due_tokens = 1
        """Tokens per sequence at which the clock looks at it again, and `ticket` the entry that does so (0: none)."""
        self.ticket = 0
        self.aborted_at = 0.0

    @property
    def expected(self) -> int:
        """The mean of its `lengths`, rounded up."""
        return -(-sum(self.lengths) // len(self.lengths))


class Ledger:
    """Reservations of one endpoint, with their totals kept as they change: no event costs more than it touches.

    The progress of a request is the most of what the relay saw and what the decode clock tells. For a stream the
    clock starts with its first token and goes at `STREAM_PACE`. A request that reports nothing until its end is
    taken to have its first token after the endpoint's mean delay; then the clock counts for it in full, as it does
    for one whose client wants many tokens in an event. All stop at `max_tokens`.
    """

    def __init__(self, clock: DecodeClock, prefill: PrefillRate, block_size: int) -> None:
        self._clock = clock
        self._prefill = prefill
        self._reservations: dict[Reservation, None] = {}  # a set that keeps its order
        self._aborting: deque[Reservation] = deque()
        self._growth: list[tuple[float, int, Reservation]] = []
        self._tickets = 0
        self._block = block_size
        self._prefixes: SharedPrefixes[Reservation] = SharedPrefixes(block_size)
        self.held = 0
        """Blocks of all reservations, as if nothing were shared between them."""
        self.confirmed = 0
        """Blocks of those with a token, which are in the engine's cache without doubt."""
        self.unseen = 0
        """Blocks of streams without a token yet: the engine may not even have begun with them."""
        self.prefilling = 0
        """Prompt tokens that it has yet to compute for those, at the most."""
        self.sequences = 0
        self.unconfirmed_sequences = 0

    def __len__(self) -> int:
        return len(self._reservations)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._reservations)

    @property
    def used(self) -> int:
        """Blocks of all reservations, shared ones once."""
        return self.held - self._prefixes.saved // self._block

    @property
    def saved(self) -> int:
        """Blocks that `held` counts more than once: prefixes that requests in flight share."""
        return self._prefixes.saved // self._block

    @property
    def shared_tokens(self) -> int:
        """Tokens that several requests hold together, once."""
        return self._prefixes.tokens

    @property
    def aborting(self) -> int:
        """Requests whose client left and whose blocks are still counted."""
        return len(self._aborting)

    def reserve(
        self, arrival: Arrived, kind: Kind, footprint: Footprint, now: float, *, prefix: Prefix = (), cached: int = 0
    ) -> Reservation:
        """Enter a request that is being dispatched.

        Args:
            arrival: the request.
            kind: of it.
            footprint: what it holds on this endpoint.
            now: seconds.
            prefix: what it may share with others here.
            cached: prompt tokens that the engine need not compute.
        """
        reading = self._clock.read(now)
        computed = arrival.demand.prompt_tokens - cached
        reservation = Reservation(arrival, kind, footprint, prefix=prefix, computed=computed, reading=reading, now=now)
        sequences = reservation.sequences
        held = reservation.held
        self._reservations[reservation] = None
        if prefix:
            self._prefixes.add(reservation)
        self.held += held
        self.sequences += sequences
        self.unconfirmed_sequences += sequences
        if arrival.streamed:
            reservation.unseen = held
            self.unseen += held
            self.prefilling += reservation.computed
            reservation.backlog = self.prefilling
        else:
            reservation.origin = reading + self._clock.first_token_delay + 1
            reservation.base = 1
            self._look_again(reservation, reservation.origin)
        return reservation

    def sharable(self, prefix: Prefix) -> int:
        """Tokens at the start of a prompt that a request in flight holds already."""
        return self._prefixes.held(prefix)

    def sole_sharer(self, prefix: Prefix) -> Reservation | None:
        """The request in flight that a newcomer with this prefix would be the first to share a part with."""
        return self._prefixes.sole(prefix)

    def progress(self, reservation: Reservation, seen: int, now: float) -> None:
        """Enter the tokens, over all sequences, that the relay has seen of a request so far."""
        if seen <= reservation.seen:
            return
        reservation.seen = seen
        if self._aborting:
            self.stepped(now)
        sequences = reservation.sequences
        tokens = seen if sequences == 1 else -(-seen // sequences)
        if tokens >= reservation.edge:
            self._grow(reservation, tokens)
        elif tokens > reservation.generated:
            reservation.generated = tokens
        if reservation.phase is Phase.UNCONFIRMED:
            self._confirm(reservation)
            reading = self._clock.read(now)
            self._clock.saw_delay(reading - reservation.dispatched)
            if reservation.streamed:
                self._prefill.saw(now - reservation.sent_at, reservation.backlog)
            reservation.origin = reading
            reservation.base = reservation.generated
            if reservation.streamed:
                reservation.pace = STREAM_PACE
            self._schedule(reservation)

    def progressed(self, reservation: Reservation, now: float) -> int:
        """Tokens, over all sequences, that a request has come to: those that were seen, or those the clock tells."""
        tokens = 0
        if reservation.phase is Phase.CONFIRMED or not reservation.streamed:
            ticks = self._clock.read(now) - reservation.origin
            tokens = reservation.base + int(ticks * reservation.pace) if ticks >= 0 else 0
        sequences = reservation.sequences
        return min(max(reservation.seen, tokens * sequences), reservation.limit * sequences)

    def stepped(self, now: float) -> None:
        """Somebody made progress: the engine has taken a step, and dropped those aborted before."""
        if self._aborting:
            self._release_aborted(REPORT_SPAN, now)

    def settle(self, now: float) -> None:
        """Bring the account up to this time.

        The aborted requests whose time is over are released, and the decode clock counts for every request that it
        has carried over a block's edge.
        """
        if self._aborting:
            self._release_aborted(ABORT_BOUND, now)
        growth = self._growth
        if not growth:
            return
        reading = self._clock.read(now)
        while growth and growth[0][0] <= reading:
            _, ticket, reservation = heappop(growth)
            if reservation.ticket != ticket:
                continue
            if reservation.phase is Phase.UNCONFIRMED:
                self._confirm(reservation)
            tokens = reservation.base + int((reading - reservation.origin) * reservation.pace)
            tokens = max(tokens, reservation.due_tokens)  # exact where the product is rounded down
            if tokens >= reservation.edge:
                self._grow(reservation, tokens)
            self._schedule(reservation)

    def release(self, reservation: Reservation, completion_tokens: int | None, now: float) -> None:
        """Take out a request that ended; its true length, where known, corrects the delay of those unseen."""
        if not reservation.streamed and not reservation.seen and completion_tokens:
            tokens = -(-completion_tokens // reservation.sequences)
            self._clock.saw_delay(self._clock.read(now) - reservation.dispatched - tokens)
        self._drop(reservation)

    def abort(self, reservation: Reservation, now: float) -> None:
        """Mark a request whose connection was closed: its blocks count until the engine has taken a step."""
        if reservation.phase is Phase.CONFIRMED:
            self.confirmed -= reservation.held
        else:
            self.unconfirmed_sequences -= reservation.sequences
        self._seen(reservation)
        reservation.phase = Phase.ABORTING
        reservation.ticket = 0
        reservation.aborted_at = now
        self._aborting.append(reservation)

    @property
    def next_abort_expiry(self) -> float:
        """When the next aborted request is released at the latest; infinity when there is none."""
        return self._aborting[0].aborted_at + ABORT_BOUND if self._aborting else inf

    def rebase(self, capacity: Capacity) -> None:
        """Count every reservation anew, for an endpoint whose blocks turned out to be others."""
        self._block = capacity.block_size
        self._prefixes = SharedPrefixes(capacity.block_size)
        self.held = self.confirmed = self.unseen = 0
        for reservation in self._reservations:
            reservation.shared = 0
            if capacity.shares_prefix:
                self._prefixes.add(reservation)
            else:
                reservation.prefix = ()
            reservation.footprint = Footprint(
                reservation.demand, capacity.block_size, shares_prefix=capacity.shares_prefix
            )
            seen = min(-(-reservation.seen // reservation.sequences), reservation.limit)
            reservation.generated = max(reservation.generated, seen)  # what was no news with the blocks before
            self._measure(reservation)
            self.held += reservation.held
            if reservation.unseen:
                reservation.unseen = reservation.held
                self.unseen += reservation.held
            if reservation.phase is Phase.CONFIRMED:
                self.confirmed += reservation.held
            if reservation.ticket and reservation.phase is Phase.CONFIRMED:
                self._schedule(reservation)

    def _seen(self, reservation: Reservation) -> None:
        if reservation.unseen:
            self.unseen -= reservation.unseen
            self.prefilling -= reservation.computed
            reservation.unseen = 0

    def _confirm(self, reservation: Reservation) -> None:
        self._seen(reservation)
        reservation.phase = Phase.CONFIRMED
        reservation.news = (reservation.edge - 1) * reservation.sequences + 1
        self.confirmed += reservation.held
        self.unconfirmed_sequences -= reservation.sequences

    def _grow(self, reservation: Reservation, tokens: int) -> None:
        reservation.generated = min(tokens, reservation.limit)
        before = reservation.held
        self._measure(reservation)
        grown = reservation.held - before
        self.held += grown
        if reservation.phase is Phase.CONFIRMED:
            self.confirmed += grown

    def _measure(self, reservation: Reservation) -> None:
        """Set what it holds, and when that will be more."""
        reservation.held, more = reservation.footprint.growth(reservation.generated)
        edge: float = more if more <= reservation.limit else inf
        reservation.edge = edge
        if reservation.phase is not Phase.UNCONFIRMED:
            reservation.news = (edge - 1) * reservation.sequences + 1

    def _schedule(self, reservation: Reservation) -> None:
        if reservation.edge == inf:
            reservation.ticket = 0
            return
        tokens = int(reservation.edge)
        if reservation.seen:
            tokens = max(tokens, min(reservation.generated + LOOK_AGAIN, reservation.limit))
        reservation.due_tokens = tokens
        due = reservation.origin + (tokens - reservation.base) / reservation.pace
        self._look_again(reservation, due)

    def _look_again(self, reservation: Reservation, reading: float) -> None:
        self._tickets += 1
        reservation.ticket = self._tickets
        heappush(self._growth, (reading, self._tickets, reservation))
        if len(self._growth) > 64 + 2 * len(self._reservations):
            self._growth = [entry for entry in self._growth if entry[2].ticket == entry[1]]
            heapify(self._growth)

    def _release_aborted(self, after: float, now: float) -> None:
        # Summed as in `next_abort_expiry`: rounded otherwise, who is woken at that time might find it not yet there.
        while self._aborting and self._aborting[0].aborted_at + after <= now:
            self._drop(self._aborting.popleft())

    def _drop(self, reservation: Reservation) -> None:
        del self._reservations[reservation]
        if reservation.prefix:
            self._prefixes.remove(reservation)
        reservation.ticket = 0
        self._seen(reservation)
        self.held -= reservation.held
        self.sequences -= reservation.sequences
        if reservation.phase is Phase.CONFIRMED:
            self.confirmed -= reservation.held
        elif reservation.phase is Phase.UNCONFIRMED:
            self.unconfirmed_sequences -= reservation.sequences
