"""What can go wrong with one request, and which request it goes wrong with."""

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """The ways an answer fails. "Mid-stream" is after `Fault.after` events that carry a token."""

    STATUS = "status"
    """`Fault.status` with an error body, before anything else; 503 says what a busy vLLM says."""
    BUSY_IN_STREAM = "busy_in_stream"
    """200, and the 503 as the first event."""
    CLOSE_BEFORE_ANSWER = "close_before_answer"
    """The connection closes before a byte of an answer."""
    STALE_KEEP_ALIVE = "stale_keep_alive"
    """The same, but only to a request that comes on a connection used before."""
    HANG_BEFORE_HEADERS = "hang_before_headers"
    """Nothing at all; also of a probe."""
    HANG_MID_STREAM = "hang_mid_stream"
    ABORT = "abort"
    """`finish_reason` "abort" mid-stream; with `after=0` it is the first the client hears."""
    RESET_MID_STREAM = "reset_mid_stream"
    """A TCP reset; a body that is not streamed is reset half way."""
    NO_FINISH = "no_finish"
    """Mid-stream `[DONE]` comes, but no `finish_reason` before it."""
    NO_DONE = "no_done"
    """The stream ends cleanly after its `finish_reason`, without usage and `[DONE]`."""
    TRUNCATED = "truncated"
    """The stream ends cleanly mid-stream, without either."""
    ENGINE_DEATH = "engine_death"
    """The error event of a vLLM whose engine died, mid-stream; 500 where nothing streams."""
    SLOW_PREFILL = "slow_prefill"
    """Nothing but headers for `Fault.seconds`, then all is well."""
    KEEP_ALIVE_COMMENTS = "keep_alive_comments"
    """A comment before every event."""
    UNKNOWN_FIELDS = "unknown_fields"
    """Fields in every event that no version of vLLM has."""
    SPLIT = "split"
    """Every event in `Fault.pieces` TCP segments."""
    COALESCE = "coalesce"
    """`Fault.pieces` events in one TCP segment and one HTTP chunk."""
    CRLF = "crlf"
    """Lines end in CR LF."""
    GIGANTIC = "gigantic"
    """The event mid-stream carries `Fault.size` bytes of text."""


FRAMING = frozenset(
    {
        FaultKind.KEEP_ALIVE_COMMENTS,
        FaultKind.UNKNOWN_FIELDS,
        FaultKind.SPLIT,
        FaultKind.COALESCE,
        FaultKind.CRLF,
    }
)
"""Faults of how events are written; the rest are faults of what happens."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, for the next `times` requests to `path`, or to any path under it where it ends with a slash.

    Where `contains` is given, only for those whose body does.
    """

    kind: FaultKind
    after: int = 0
    times: int = 1
    path: str = "/v1/"
    status: int = 503
    seconds: float = 1.0
    pieces: int = 3
    size: int = 1 << 20
    contains: str = ""


class FaultPlan:
    """Faults still to come, taken in order."""

    def __init__(self) -> None:
        self._pending: list[list[Fault | int]] = []

    def add(self, fault: Fault) -> None:
        self._pending.append([fault, fault.times])

    def clear(self) -> None:
        self._pending.clear()

    def take(self, path: str, body: bytes, *, reused_connection: bool) -> Fault | None:
        """The fault of this request, if it has one."""
        for entry in self._pending:
            fault, left = entry
            assert isinstance(fault, Fault)
            assert isinstance(left, int)
            if path != fault.path and not (fault.path.endswith("/") and path.startswith(fault.path)):
                continue
            if fault.kind is FaultKind.STALE_KEEP_ALIVE and not reused_connection:
                continue
            if fault.contains.encode() not in body:
                continue
            if left == 1:
                self._pending.remove(entry)
            else:
                entry[1] = left - 1
            return fault
        return None
