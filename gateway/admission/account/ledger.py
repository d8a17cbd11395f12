"""The ledger of one endpoint's KV cache: the blocks counted for each request in flight.

Some engines fail every request once their cache is full. On those a reservation has the blocks of the request's whole
output limit from the start (`Capacity.holds_limit`).
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from gateway.admission.account.decode_clock import DecodeClock
from gateway.admission.account.drain_rate import DrainRate
from gateway.admission.account.footprint import Footprint
from gateway.admission.account.prefill import PrefillRate
from gateway.admission.account.prefixes import SharedPrefixes
from gateway.admission.events import Arrived, Capacity, Prefix, RequestId
from gateway.admission.tuning import TUNING


class ReservationPhase(Enum):
    """Stage of a reservation."""

    UNCONFIRMED = auto()
    """It has no token yet and may still wait inside the engine."""
    CONFIRMED = auto()
    """It has a token, so the engine holds its blocks."""
    ABORTING = auto()
    """We closed its connection. Its blocks count until the engine has taken a step, at most `abort_bound` seconds."""


# Constants: in Python 3.11 each access to an enum member is a function call, and this path is hot.
_UNCONFIRMED: Final = ReservationPhase.UNCONFIRMED
_CONFIRMED: Final = ReservationPhase.CONFIRMED


class Reservation:
    """The blocks and progress of one request in flight."""

    __slots__ = (
        "aborted_at",
        "base",
        "demand",
        "dispatch_reading",
        "due_tokens",
        "edge",
        "first_token_at",
        "footprint",
        "generated",
        "held",
        "limit",
        "next_report",
        "origin",
        "pace",
        "phase",
        "prefill_backlog",
        "prefilling_blocks",
        "prefix",
        "reported",
        "request",
        "sent_at",
        "sequences",
        "shared",
        "streamed",
        "ticket",
        "uncached",
    )

    def __init__(
        self,
        arrival: Arrived,
        footprint: Footprint,
        *,
        prefix: Prefix,
        uncached: int,
        reading: float,
        now: float,
        holds_limit: bool,
    ) -> None:
        demand = arrival.demand
        self.request = arrival.request
        self.demand = demand
        self.footprint = footprint
        self.streamed = arrival.streamed
        self.sequences = demand.sequences
        self.limit = max(1, demand.max_tokens)
        """Most tokens a sequence may generate."""
        self.prefix = prefix
        self.sent_at = now
        self.dispatch_reading = reading
        """Reading of the decode clock at its dispatch."""
        self.uncached = uncached
        """Prompt tokens that are not cached: the engine has to compute them."""
        self.first_token_at = inf
        """When the relay told of its first token. Of a whole answer it tells at its end only."""
        self.prefill_backlog = 0
        """Prompt tokens, of all streams and its own, that the engine had yet to compute when it was sent."""
        self.shared = 0
        """Tokens of its prompt that another request in flight also holds."""
        self.phase = _UNCONFIRMED
        self.prefilling_blocks = 0
        """Blocks it adds to `Ledger.prefilling_blocks`: all those of a stream until its first token, then 0."""
        self.reported = 0
        """Tokens that the relay reported, over all sequences."""
        self.generated = self.limit if holds_limit else 1
        """Tokens per sequence in its account. It starts at 1, as prefill ends with the first token. If the reservation
        holds its whole limit, it starts at the limit."""
        self.held, edge = footprint.growth(self.generated)
        """Blocks, including those it shares with others."""
        self.edge: float = edge if edge <= self.limit else inf
        """Tokens per sequence at which it will hold more blocks; infinity if its limit comes first."""
        self.next_report = 0.0
        """A report of fewer tokens than this, over all sequences, changes nothing."""
        self.origin = 0.0
        """Reading of the decode clock at which counting its tokens began."""
        self.base = 0
        """Tokens per sequence at that reading."""
        self.pace = 1.0
        """Tokens per sequence for each tick of the decode clock."""
        self.due_tokens = 1
        """Tokens per sequence at which `advance` checks next whether it holds another block."""
        self.ticket = 0
        """Number of its valid entry in the heap of checks (`_checks`); 0 if it has none."""
        self.aborted_at = 0.0


class Ledger:
    """Reservations of one endpoint and their totals, kept up to date: an event costs only what it touches.

    The progress of a request is the larger of two counts: the tokens that the relay reported, and those that the decode
    clock counted. For a stream the clock starts at its first reported token and runs at `stream_pace`. If a request
    reports nothing until its end, the clock starts after the endpoint's mean delay of first tokens and runs at full
    speed. Every count stops at `max_tokens`.
    """

    def __init__(self, clock: DecodeClock, prefill: PrefillRate, block_size: int, *, holds_limit: bool = False) -> None:
        self._clock = clock
        self._prefill = prefill
        self.begins = DrainRate()
        """Prompt tokens that the engine begins with a second while requests wait in it: by first tokens, and by ends
        of whole answers."""
        self._reservations: dict[Reservation, None] = {}  # an ordered set
        self._aborting: deque[Reservation] = deque()
        self._checks: list[tuple[float, int, Reservation]] = []
        self._tickets = 0
        self._block = block_size
        self.holds_limit = holds_limit
        """Whether each request holds the blocks of its output limit from its start."""
        self._prefixes: SharedPrefixes[Reservation] = SharedPrefixes(block_size)
        self.held = 0
        """Blocks of all reservations, with shared blocks counted for each holder."""
        self.confirmed = 0
        """Blocks of reservations with a token, reported or by the decode clock: taken to be in the engine's cache."""
        self.prefilling_blocks = 0
        """Blocks of streams in prefill, which have no token yet: the engine may not have begun with them."""
        self.prefilling_tokens = 0
        """Upper bound of the prompt tokens that the engine has yet to compute for streams in prefill."""
        self.sequences = 0
        self.unconfirmed_sequences = 0
        """Sequences of reservations without a token, and below their prompt tokens that are not cached."""
        self.unconfirmed_tokens = 0

    def __len__(self) -> int:
        return len(self._reservations)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self._reservations)

    @property
    def used(self) -> int:
        """Blocks of all reservations, with shared blocks counted once."""
        return self.held - self._prefixes.saved_tokens // self._block

    @property
    def saved_blocks(self) -> int:
        """Blocks saved by sharing prefixes. `held` counts them more than once."""
        return self._prefixes.saved_tokens // self._block

    @property
    def shared_tokens(self) -> int:
        """Tokens that several requests share, counted once."""
        return self._prefixes.tokens

    @property
    def aborting(self) -> int:
        """Number of aborted requests whose blocks still count."""
        return len(self._aborting)

    def reserve(
        self, arrival: Arrived, footprint: Footprint, now: float, *, prefix: Prefix = (), cached: int = 0
    ) -> Reservation:
        """Enter a request as it is dispatched.

        Args:
            arrival: The request.
            footprint: Its blocks on this endpoint.
            now: Seconds.
            prefix: The leading parts of its prompt that it may share with others here.
            cached: Prompt tokens that the engine need not compute.
        """
        reading = self._clock.read(now)
        uncached = arrival.demand.prompt_tokens - cached
        reservation = Reservation(
            arrival, footprint, prefix=prefix, uncached=uncached, reading=reading, now=now, holds_limit=self.holds_limit
        )
        sequences = reservation.sequences
        held = reservation.held
        self._reservations[reservation] = None
        if prefix:
            self._prefixes.add(reservation)
        self.held += held
        self.sequences += sequences
        self.unconfirmed_sequences += sequences
        self.unconfirmed_tokens += uncached
        if arrival.streamed:
            reservation.prefilling_blocks = held
            self.prefilling_blocks += held
            self.prefilling_tokens += reservation.uncached
            reservation.prefill_backlog = self.prefilling_tokens
        else:
            reservation.origin = reading + self._clock.first_token_delay + 1
            reservation.base = 1
            self._recheck_at(reservation, reservation.origin)
        return reservation

    def unconfirmed_since(self, at: float) -> int:
        """Sequences that were sent after this time, and have no token yet."""
        sequences = 0
        for reservation in reversed(self._reservations):
            if reservation.sent_at <= at:
                break
            if reservation.phase is _UNCONFIRMED:
                sequences += reservation.sequences
        return sequences

    def sharable(self, prefix: Prefix) -> int:
        """Leading tokens of a prompt that a request in flight already holds."""
        return self._prefixes.held(prefix)

    def sole_sharer(self, prefix: Prefix) -> Reservation | None:
        """The only holder of some part of this prefix; None if no part has exactly one holder."""
        return self._prefixes.sole(prefix)

    def progress(self, reservation: Reservation, reported: int, now: float) -> None:
        """Enter the tokens that the relay has reported of a request so far, over all sequences."""
        if reported <= reservation.reported:
            return
        if not reservation.reported:
            reservation.first_token_at = now
        reservation.reported = reported
        if self._aborting:
            self.note_step(now)
        sequences = reservation.sequences
        tokens = reported if sequences == 1 else -(-reported // sequences)
        if tokens >= reservation.edge:
            self._grow(reservation, tokens)
        elif tokens > reservation.generated:
            reservation.generated = tokens
        if reservation.phase is _UNCONFIRMED:
            self._confirm(reservation)
            reading = self._clock.read(now)
            if now > reservation.sent_at:  # else another core handed it over with its tokens (`Declared`)
                self._clock.learn_delay(reading - reservation.dispatch_reading)
                self.begins.completed(reservation.uncached, now)
                if reservation.streamed:
                    self._prefill.learn(now - reservation.sent_at, reservation.prefill_backlog)
            reservation.origin = reading
            reservation.base = min(tokens, reservation.limit)
            if reservation.streamed:
                reservation.pace = TUNING.stream_pace
            self._schedule(reservation)

    def tokens_so_far(self, reservation: Reservation, now: float) -> int:
        """Tokens of a request so far, over all sequences: as reported or as counted by the clock, whichever is more."""
        tokens = 0
        if reservation.phase is _CONFIRMED or not reservation.streamed:
            ticks = self._clock.read(now) - reservation.origin
            tokens = reservation.base + int(ticks * reservation.pace) if ticks >= 0 else 0
        sequences = reservation.sequences
        return min(max(reservation.reported, tokens * sequences), reservation.limit * sequences)

    def note_step(self, now: float) -> None:
        """Note progress of any request. It proves a step: what was aborted over `report_span` ago holds nothing."""
        if self._aborting:
            self._release_aborted(TUNING.report_span, now)

    def advance(self, now: float) -> None:
        """Bring the account up to this time.

        It releases aborted requests whose time is over, and adds the blocks of requests that the decode clock has
        carried over a block boundary.
        """
        if self._aborting:
            self._release_aborted(TUNING.abort_bound, now)
        checks = self._checks
        if not checks:
            return
        reading = self._clock.read(now)
        while checks and checks[0][0] <= reading:
            _, ticket, reservation = heappop(checks)
            if reservation.ticket != ticket:
                continue
            if reservation.phase is _UNCONFIRMED:
                self._confirm(reservation)
            tokens = reservation.base + int((reading - reservation.origin) * reservation.pace)
            tokens = max(tokens, reservation.due_tokens)  # exact even if the product is rounded down
            if tokens >= reservation.edge:
                self._grow(reservation, tokens)
            self._schedule(reservation)

    def release(self, reservation: Reservation, completion_tokens: int | None, now: float) -> None:
        """Take out a request that ended.

        If it reported no tokens, its length corrects the mean delay of first tokens.
        """
        if not reservation.streamed and not reservation.reported and completion_tokens:
            tokens = -(-completion_tokens // reservation.sequences)
            self._clock.learn_delay(self._clock.read(now) - reservation.dispatch_reading - tokens)
            self.begins.completed(reservation.uncached, now)
        self._drop(reservation)

    def abort(self, reservation: Reservation, now: float) -> None:
        """Mark a request whose connection was closed: its blocks count until the engine takes a step."""
        if reservation.phase is _CONFIRMED:
            self.confirmed -= reservation.held
        else:
            self.unconfirmed_sequences -= reservation.sequences
            self.unconfirmed_tokens -= reservation.uncached
        self._end_prefill(reservation)
        reservation.phase = ReservationPhase.ABORTING
        reservation.ticket = 0
        reservation.aborted_at = now
        self._aborting.append(reservation)

    def resume(self, request: RequestId) -> None:
        """Drop the reservation of an aborted request that goes on after all: its caller reserves anew."""
        for reservation in self._aborting:  # few; or a front resumes all of its own, in this order
            if reservation.request == request:
                self._aborting.remove(reservation)
                self._drop(reservation)
                return

    @property
    def next_abort_expiry(self) -> float:
        """Time by which the oldest aborted request is released; infinity if there is none."""
        return self._aborting[0].aborted_at + TUNING.abort_bound if self._aborting else inf

    def rebase(self, capacity: Capacity) -> None:
        """Recount every reservation, after the endpoint's blocks have changed."""
        self._block = capacity.block_size
        held_limit_before, self.holds_limit = self.holds_limit, capacity.holds_limit
        self._prefixes = SharedPrefixes(capacity.block_size)
        self.held = self.confirmed = self.prefilling_blocks = 0
        for reservation in self._reservations:
            reservation.shared = 0
            if capacity.shares_prefix:
                self._prefixes.add(reservation)
            else:
                reservation.prefix = ()
            reservation.footprint = Footprint(
                reservation.demand, capacity.block_size, shares_prefix=capacity.shares_prefix
            )
            # Reports within a block of the old size were only noted in `reported`.
            reported = min(-(-reservation.reported // reservation.sequences), reservation.limit)
            if self.holds_limit:
                generated = reservation.limit
            elif held_limit_before:
                generated = max(1, reported)
            else:
                generated = max(reservation.generated, reported)
            reservation.held = 0
            self._grow(reservation, generated)
            if reservation.prefilling_blocks:
                reservation.prefilling_blocks = reservation.held
                self.prefilling_blocks += reservation.held
            if reservation.ticket and reservation.phase is _CONFIRMED:
                self._schedule(reservation)

    def _end_prefill(self, reservation: Reservation) -> None:
        if reservation.prefilling_blocks:
            self.prefilling_blocks -= reservation.prefilling_blocks
            self.prefilling_tokens -= reservation.uncached
            reservation.prefilling_blocks = 0

    def _confirm(self, reservation: Reservation) -> None:
        self._end_prefill(reservation)
        reservation.phase = _CONFIRMED
        reservation.next_report = (reservation.edge - 1) * reservation.sequences + 1
        self.confirmed += reservation.held
        self.unconfirmed_sequences -= reservation.sequences
        self.unconfirmed_tokens -= reservation.uncached

    def _grow(self, reservation: Reservation, tokens: int) -> None:
        """Set its tokens per sequence, its blocks, and the tokens at which it will hold more."""
        limit, phase = reservation.limit, reservation.phase
        generated = reservation.generated = tokens if tokens < limit else limit  # noqa: FURB136 - a call for each block
        held, more = reservation.footprint.growth(generated)
        grown = held - reservation.held
        edge: float = more if more <= limit else inf
        reservation.held, reservation.edge = held, edge
        self.held += grown
        if phase is not _UNCONFIRMED:
            reservation.next_report = (edge - 1) * reservation.sequences + 1
            if phase is _CONFIRMED:
                self.confirmed += grown

    def _schedule(self, reservation: Reservation) -> None:
        if reservation.edge == inf:
            reservation.ticket = 0
            return
        tokens = int(reservation.edge)
        if reservation.reported:
            tokens = max(tokens, min(reservation.generated + TUNING.recheck_tokens, reservation.limit))
        reservation.due_tokens = tokens
        due = reservation.origin + (tokens - reservation.base) / reservation.pace
        self._recheck_at(reservation, due)

    def _recheck_at(self, reservation: Reservation, reading: float) -> None:
        self._tickets += 1
        reservation.ticket = self._tickets
        heappush(self._checks, (reading, self._tickets, reservation))
        if len(self._checks) > 64 + 2 * len(self._reservations):
            self._checks = [entry for entry in self._checks if entry[2].ticket == entry[1]]
            heapify(self._checks)

    def _release_aborted(self, after: float, now: float) -> None:
        # The same expression as in `next_abort_expiry`: one that rounds differently could wake the core just before the
        # release is due.
        while self._aborting and self._aborting[0].aborted_at + after <= now:
            self._drop(self._aborting.popleft())

    def _drop(self, reservation: Reservation) -> None:
        del self._reservations[reservation]
        if reservation.prefix:
            self._prefixes.remove(reservation)
        reservation.ticket = 0
        self._end_prefill(reservation)
        self.held -= reservation.held
        self.sequences -= reservation.sequences
        if reservation.phase is _CONFIRMED:
            self.confirmed -= reservation.held
        elif reservation.phase is _UNCONFIRMED:
            self.unconfirmed_sequences -= reservation.sequences
            self.unconfirmed_tokens -= reservation.uncached
