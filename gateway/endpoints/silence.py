"""PURE. The silence of an endpoint: how long nothing has moved for the requests on it, and whether that means a hang.

Only tokens prove life: one that the relay saw, a complete answer, or an engine step that shows in the metrics (a token
counter moved, or KV usage rose). A fall of usage or of running requests proves nothing: a paused engine still frees
what is aborted (measured, 0.32). Signs of work only lengthen the silence that is allowed.

The silence of one request alone proves nothing about its engine: the request may be slow, or the one the engine chokes
on. Such a request is ended, and not sent elsewhere. Only if others were silent too does the engine count as hung.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from gateway.admission.events import RequestId
from gateway.endpoints.exposition import EngineMetrics

PREFILL_TIMES = 4.0
"""Multiple of its expected time that a prefill may take before its silence counts."""
AT_WORK = 4.0
"""Multiple of `hung_after` for an engine at work; for a lone request, also where the processes cannot be seen."""
UNANSWERING = 2.0
"""Multiple for an engine that takes connections and answers no probe. The kernel alone can accept them."""
SECOND_OPINION = 0.5
"""A hang needs a second witness. The request silent second longest and all that left must together have been silent for
this share of `hung_after`."""
BRIEF = 1 / 30
"""Share of `hung_after`. A request that left sooner was refused, or did not wait for a token."""

_ASSUMED_TOKENS = 2000.0
_ASSUMED_SECONDS = 10.0
"""Until measured, prefill is assumed at 200 tokens/s, a large model on a CPU: so no slow engine is called hung."""
_KEEP = 0.9
"""Weight of the earlier measurements in the EWMA of the prefill rate."""


class SilenceCause(Enum):
    """The likely cause of a silence."""

    HUNG = auto()
    """Several requests were silent: the engine hangs."""
    ALONE = auto()
    """The only request was silent: the engine hangs, or only this request does."""
    EVACUATED = auto()
    """Only requests taken off another endpoint are silent: this endpoint is not to blame."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time without movement, longer than the known work explains."""

    cause: SilenceCause
    reason: str
    requests: tuple[RequestId, ...]
    """The requests on the endpoint whose time is over."""


@dataclass(slots=True)
class _Tracked:
    """A request whose silence says something of its endpoint."""

    prompt_tokens: int
    streams: bool
    since: float
    evacuated: bool
    started: bool = False


class SilenceMeter:
    """The requests on one endpoint, and how long nothing has moved for them.

    Attributes:
        hung_after: least seconds without progress that count as a hang.
        loads: seconds that a request may wait for its first token while its engine loads the model for it.
    """

    def __init__(self, hung_after: float) -> None:
        self.hung_after = hung_after
        self.loads = 0.0
        self._requests: dict[RequestId, _Tracked] = {}
        self._streams: dict[RequestId, _Tracked] = {}
        """Those of them that stream; both are in the order of dispatch."""
        self._passing: set[RequestId] = set()
        self._metrics: EngineMetrics | None = None
        self._scraped_at = float("-inf")
        self._queued_at = float("-inf")
        """When the engine was last known to have waiting requests."""
        self._silent_before = 0.0
        """Seconds of this silence before `_silent_from`."""
        self._silent_from: float | None = None
        """Since when the silence goes on; None while no request is here."""
        self._measured_from = float("-inf")
        self._blocked = False
        """Whether the last probe's connection was accepted and no answer came."""
        self._was_blocked = False
        """Whether that happened at any time during this silence."""
        self._mute = False
        """Whether that was the question for its health: then a request that does not stream is as silent as others."""
        self._unseen_until = float("-inf")
        """Until when tokens of requests without a stream would not have been seen."""
        self._left_silent = self._left_longest = 0.0
        """Silent seconds of requests that left since the last progress: their sum, and the longest."""
        self._prefill_tokens = _ASSUMED_TOKENS
        self._prefill_seconds = _ASSUMED_SECONDS

    @property
    def in_flight(self) -> int:
        """Requests on the endpoint whose silence says something of it."""
        return len(self._requests)

    @property
    def passing(self) -> int:
        """Requests whose answers are only passed on."""
        return len(self._passing)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second from dispatch to first token, or to a whole answer; long prompts weigh more."""
        return self._prefill_tokens / self._prefill_seconds

    def dispatched(
        self,
        request: RequestId,
        prompt_tokens: int | None,
        now: float,
        *,
        streams: bool = True,
        evacuated: bool = False,
        started: bool = False,
    ) -> None:
        """Note a request sent to the endpoint.

        `streams` says that its tokens will be seen one by one, `evacuated` that it had to leave another endpoint,
        `started` that it was there before, and had its first token: its next one tells nothing of a prefill. One
        without `prompt_tokens` is only passed on: its silence says nothing.
        """
        if prompt_tokens is None:
            self._passing.add(request)
            return
        tracked = self._requests[request] = _Tracked(prompt_tokens, streams, now, evacuated, started)
        if streams:
            self._streams[request] = tracked
        if self._silent_from is None:
            self._silent_from = now

    def finished(self, request: RequestId, now: float, *, delivering: bool = False) -> None:
        """Note that a request has left, however it ended. That is no progress: its client may have given up.

        Time is silence only while a request here awaits a token and its progress would be seen. If other time counted,
        hours of it would make the next burst look like a hang.

        `delivering`: its client had not taken what had arrived, so that its silence says nothing of the engine.
        """
        self._passing.discard(request)
        self._streams.pop(request, None)
        gone = self._requests.pop(request, None)
        if gone is None or self._silent_from is None:
            return
        silent = self._request_silence(gone, now)
        if not delivering and silent >= BRIEF * self.hung_after and self._visible(gone, now):
            longest = max(silent, self._longest(now))  # the others' silence says nothing
            self._silent_before += min(now - self._silent_from, longest)
            self._silent_from = now
            if not gone.evacuated:
                self._left_silent += silent
                self._left_longest = max(self._left_longest, silent)
        oldest = next(iter(self._requests.values()), None)
        if oldest is not None:
            self._silent_from = max(self._silent_from, oldest.since)
        else:
            self._silent_from = None
            self._was_blocked = self._blocked

    def progressed(self, requests: Iterable[RequestId], now: float) -> None:
        """Note requests with new tokens or, if they do not stream, with an answer."""
        for request in requests:
            tracked = self._requests.get(request)
            if tracked is None or tracked.started:
                continue
            tracked.started = True
            seconds = max(now - tracked.since, 1e-3)
            # A whole answer took longer than its prefill: it only tells that this is no slower.
            if tracked.streams or tracked.prompt_tokens > seconds * self.prefill_rate:
                self._prefill_tokens = self._prefill_tokens * _KEEP + tracked.prompt_tokens
                self._prefill_seconds = self._prefill_seconds * _KEEP + seconds
        self.forget(now)

    def scraped(self, metrics: EngineMetrics, now: float) -> bool:
        """Take a scrape; return whether the engine made a step since the one before."""
        before, self._metrics, self._scraped_at = self._metrics, metrics, now
        if metrics.waiting != 0 or metrics.deferred:
            self._queued_at = now
        if before is None:
            return False
        moved = (
            _differs(before.generation_tokens, metrics.generation_tokens)
            or _differs(before.prompt_tokens, metrics.prompt_tokens)
            or (metrics.kv_usage or 0.0) > (before.kv_usage or 0.0)
            or (metrics.work or 0.0) > (before.work or 0.0)
        )
        if moved:
            self.forget(now)
        return moved

    def probed(self, now: float, *, blocked: bool, mute: bool) -> None:
        """Note the end of a probe. `blocked`: a connection was accepted, and no answer came. `mute`: of `/health`."""
        if mute and not self._mute and not self._counts(now):
            self._unseen_until = now
        self._mute, self._blocked = mute, blocked
        self._was_blocked |= blocked

    def restart(self, now: float) -> None:
        """Measure the silence from now on, but remember which requests were silent: nothing has moved."""
        self._silent_before = 0.0
        self._silent_from = now if self._requests else None
        self._measured_from = now
        self._was_blocked = self._blocked

    def forget(self, now: float) -> None:
        """Forget the silence so far: something has moved, or it is another process."""
        self.restart(now)
        self._left_silent = self._left_longest = 0.0

    def doubtful(self, now: float) -> bool:
        """Whether nothing has moved for so long that a look at the processes is worth it."""
        return self._endpoint_silence(now) >= self.hung_after / 2

    def patience(self, *, busy: bool | None, alone: bool = False) -> float:
        """Allowed seconds of silence, without the time for a load or prefills.

        Args:
            busy: whether the engine's processes compute; None if they cannot be seen.
            alone: only one request is there to judge by. An early end gains it nothing, so processes that cannot be
                seen count as working.
        """
        if busy or (alone and busy is None):
            return self.hung_after * AT_WORK
        return self.hung_after * (UNANSWERING if self._was_blocked else 1.0)

    def stalled(self, now: float, *, busy: bool | None = None) -> Silence | None:
        """Judge the silence; None while it means nothing. For `busy` see `patience`."""
        watched = {key: r for key, r in self._requests.items() if self._visible(r, now)}
        if not watched:
            return None
        quiet = min(self._endpoint_silence(now), self._silent_before + self._longest(now))  # as in `finished`
        # Prefills end one by one, so expect the silence of the longest.
        beginning = max(self._beginning(r) for r in watched.values())
        if quiet < max(self.patience(busy=busy), beginning):
            return None
        own = sorted(self._request_silence(r, now) for r in watched.values() if not r.evacuated)
        # A burst waits at the same time, however many it has: of those here the two longest count.
        others = sum(own[-2:]) + self._left_silent - max([*own, self._left_longest])
        if own and others >= SECOND_OPINION * self.hung_after:
            reason = f"no progress for {quiet:.0f} s with {len(self._requests)} requests in flight"
            return Silence(SilenceCause.HUNG, reason, tuple(watched))
        shortest = min(self._request_silence(r, now) for r in watched.values())
        if len(own) > 1 or shortest < max(self.patience(busy=busy, alone=True), beginning):
            return None
        cause = SilenceCause.ALONE if own else SilenceCause.EVACUATED
        return Silence(cause, f"the only request on it has had no token for {shortest:.0f} s", tuple(watched))

    def overdue(self, now: float) -> list[RequestId]:
        """Streams that do not begin although the engine works and has no waiting requests."""
        if not self._fresh(now):
            return []
        most = self.hung_after * AT_WORK
        return [
            key
            for key, r in self._streams.items()
            if not r.started and now - max(r.since, self._queued_at) >= max(most, self._beginning(r))
        ]

    def _visible(self, tracked: _Tracked, now: float) -> bool:
        """Whether its progress would be visible. Without a stream it shows only in the metrics."""
        return tracked.streams or self._mute or self._counts(now)

    def _counts(self, now: float) -> bool:
        """Whether the engine's own count of tokens would show a step."""
        return self._fresh(now) and self._metrics is not None and self._metrics.generation_tokens is not None

    def _endpoint_silence(self, now: float) -> float:
        """Seconds with work and without progress."""
        return self._silent_before + (now - self._silent_from if self._silent_from is not None else 0.0)

    def _longest(self, now: float) -> float:
        """Seconds of silence of the visible request with the most.

        That is the first of all or the first that streams. All may leave at once, so none looks through the others.
        """
        first = (next(iter(which.values()), None) for which in (self._requests, self._streams))
        return max((self._request_silence(r, now) for r in first if r is not None and self._visible(r, now)), default=0)

    def _request_silence(self, tracked: _Tracked, now: float) -> float:
        since = tracked.since if tracked.streams else max(tracked.since, self._unseen_until)
        return now - max(since, self._measured_from)

    def _beginning(self, tracked: _Tracked) -> float:
        """Seconds that may pass until its first token."""
        if tracked.started:
            return 0.0
        return max(self.loads, PREFILL_TIMES * tracked.prompt_tokens / self.prefill_rate)

    def _fresh(self, now: float) -> bool:
        return now - self._scraped_at < self.hung_after / 2


def _differs(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and before != now
