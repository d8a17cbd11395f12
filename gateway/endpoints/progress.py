"""PURE. The requests on an endpoint, how long nothing has moved there, and what that comes to.

Only tokens prove life: one that the relay saw, an answer that came whole, or an engine step that shows in the metrics
(a counter of tokens moved, or KV usage rose). That usage or the running requests fall proves nothing: a paused engine
still lets go of what is aborted (measured, 0.32). Signs of work only lengthen the time that silence may last.

One request that is silent alone says nothing sure of its engine: it may be what the engine chokes on, or slow. It ends,
and is not sent elsewhere. Only where others were silent too, the engine hangs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from gateway.admission.events import RequestId
from gateway.endpoints.exposition import EngineMetrics

PREFILL_TIMES = 4.0
"""A prefill may take so many times what it should before its silence counts."""
AT_WORK = 4.0
"""What an engine that is at work, or whose processes cannot be seen, has of `hung_after`: the most there is."""
UNANSWERING = 2.0
"""What one has that takes connections and answers no probe. That alone the kernel does for it."""
SECOND_OPINION = 0.5
"""Share of `hung_after` for which other requests together must have been silent too."""
BRIEF = 1 / 30
"""Share of `hung_after`: who left sooner was refused, or did not wait to see a token."""

_ASSUMED_TOKENS = 2000.0
_ASSUMED_SECONDS = 10.0
"""Until measured, prefill runs at 200 tokens/s: a large model on a CPU, so that no slow engine is called hung."""
_KEEP = 0.9
"""What a measurement of the prefill rate keeps of those before."""


class Verdict(Enum):
    """What silence comes to."""

    HUNG = auto()
    """Several requests were silent: the engine hangs."""
    ALONE = auto()
    """One was, and there was no other: the engine hangs, or only this request."""
    BROUGHT = auto()
    """Only such are silent as had to leave another endpoint before: this one is not to blame."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing has moved for longer than what is known explains."""

    verdict: Verdict
    reason: str
    requests: tuple[RequestId, ...]
    """Those on the endpoint whose time is over."""


@dataclass(slots=True)
class _OnIt:
    prompt_tokens: int
    streams: bool
    since: float
    brought: bool
    started: bool = False


class Progress:
    """What one endpoint is at.

    Attributes:
        hung_after: the least time without progress, seconds, that is a hang.
    """

    def __init__(self, hung_after: float) -> None:
        self.hung_after = hung_after
        self._requests: dict[RequestId, _OnIt] = {}
        self._metrics: EngineMetrics | None = None
        self._scraped_at = float("-inf")
        self._queued_at = float("-inf")
        """When the engine last had requests that wait, as far as is known."""
        self._quiet = 0.0
        self._quiet_from: float | None = None
        self._moved_at = float("-inf")
        self._blocked = False
        """Whether the last probe's connection was taken, and nothing came."""
        self._was_blocked = False
        """Whether that was so at any time of this silence."""
        self._left_silent = self._left_longest = 0.0
        """Seconds that those were silent that left since the last progress: all of them, and the longest."""
        self._prefill_tokens = _ASSUMED_TOKENS
        self._prefill_seconds = _ASSUMED_SECONDS

    @property
    def in_flight(self) -> int:
        """Requests on the endpoint."""
        return len(self._requests)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second from dispatch to first token, long prompts weighing more."""
        return self._prefill_tokens / self._prefill_seconds

    def dispatched(
        self, request: RequestId, prompt_tokens: int, now: float, *, streams: bool = True, brought: bool = False
    ) -> None:
        """A request was sent.

        `streams` says that its tokens will be seen one by one, `brought` that it had to leave another endpoint.
        """
        self._requests[request] = _OnIt(prompt_tokens, streams, now, brought)
        if self._quiet_from is None:
            self._quiet_from = now

    def finished(self, request: RequestId, now: float) -> None:
        """A request has left, however it ended. That alone is no progress: its client may have given up."""
        gone = self._requests.pop(request, None)
        if gone is not None and self._watched(gone, now) and not gone.brought:
            silent = self._silent(gone, now)
            if silent >= BRIEF * self.hung_after:
                self._left_silent += silent
                self._left_longest = max(self._left_longest, silent)
        if not self._requests and self._quiet_from is not None:
            self._quiet += now - self._quiet_from
            self._quiet_from = None
            self._was_blocked = self._blocked

    def progressed(self, requests: Iterable[RequestId], now: float) -> None:
        """Tokens of these requests were seen, or the answers of those that do not stream."""
        for request in requests:
            on_it = self._requests.get(request)
            if on_it is None or on_it.started:
                continue
            on_it.started = True
            if on_it.streams:
                self._prefill_tokens = self._prefill_tokens * _KEEP + on_it.prompt_tokens
                self._prefill_seconds = self._prefill_seconds * _KEEP + max(now - on_it.since, 1e-3)
        self.forget(now)

    def scraped(self, metrics: EngineMetrics, now: float) -> bool:
        """Take a scrape in; True where it shows that the engine made a step since the one before."""
        before, self._metrics, self._scraped_at = self._metrics, metrics, now
        if metrics.waiting != 0:
            self._queued_at = now
        if before is None:
            return False
        moved = (
            _differs(before.generation_tokens, metrics.generation_tokens)
            or _differs(before.prompt_tokens, metrics.prompt_tokens)
            or (metrics.kv_usage or 0.0) > (before.kv_usage or 0.0)
        )
        if moved:
            self.forget(now)
        return moved

    def probed(self, *, blocked: bool) -> None:
        """A probe has ended; `blocked`: its connection was taken, and no answer came."""
        self._blocked = blocked
        self._was_blocked |= blocked

    def restart(self, now: float) -> None:
        """Begin to measure the silence anew. Who was silent before is not forgotten: nothing has moved."""
        self._quiet = 0.0
        self._quiet_from = now if self._requests else None
        self._moved_at = now
        self._was_blocked = self._blocked

    def forget(self, now: float) -> None:
        """The silence until now says nothing any more: something has moved, or it is another process."""
        self.restart(now)
        self._left_silent = self._left_longest = 0.0

    def doubtful(self, now: float) -> bool:
        """Whether nothing has moved for so long that other signs are worth a look."""
        return self._silence(now) >= self.hung_after / 2

    def patience(self, *, busy: bool | None, alone: bool = False) -> float:
        """Seconds that nothing may move, prefills apart.

        Args:
            busy: whether the engine's processes compute; None where they cannot be seen.
            alone: one request is all there is to tell by. It has nothing to gain from an early end, so what cannot be
                seen counts as work.
        """
        if busy or (alone and busy is None):
            return self.hung_after * AT_WORK
        return self.hung_after * (UNANSWERING if self._was_blocked else 1.0)

    def stalled(self, now: float, *, busy: bool | None = None) -> Silence | None:
        """What the silence comes to, None while there is nothing to be said; `busy` as of `patience`."""
        watched = {key: r for key, r in self._requests.items() if self._watched(r, now)}
        if not watched:
            return None
        quiet = self._silence(now)
        # Prefills end one by one, so the silence to expect is that of the longest.
        prefill = PREFILL_TIMES * max((self._prefill(r) for r in watched.values()), default=0.0)
        if quiet < max(self.patience(busy=busy), prefill):
            return None
        own = [self._silent(r, now) for r in watched.values() if not r.brought]
        others = sum(own) + self._left_silent - max([*own, self._left_longest])
        if own and others >= SECOND_OPINION * self.hung_after:
            reason = f"no progress for {quiet:.0f} s with {len(self._requests)} requests in flight"
            return Silence(Verdict.HUNG, reason, tuple(watched))
        shortest = min(self._silent(r, now) for r in watched.values())
        if len(own) > 1 or shortest < max(self.patience(busy=busy, alone=True), prefill):
            return None
        verdict = Verdict.ALONE if own else Verdict.BROUGHT
        return Silence(verdict, f"the only request on it has had no token for {shortest:.0f} s", tuple(watched))

    def overdue(self, now: float) -> list[RequestId]:
        """Streams that do not begin although the engine is at work, and nothing waits in it."""
        if not self._fresh(now):
            return []
        most = self.hung_after * AT_WORK
        return [
            key
            for key, r in self._requests.items()
            if r.streams
            and not r.started
            and now - max(r.since, self._queued_at) >= max(most, PREFILL_TIMES * self._prefill(r))
        ]

    def _watched(self, on_it: _OnIt, now: float) -> bool:
        """Whether its progress would be seen: of one that does not stream only in metrics."""
        if on_it.streams or self._blocked:
            return True
        return self._fresh(now) and self._metrics is not None and self._metrics.generation_tokens is not None

    def _silence(self, now: float) -> float:
        """Seconds with work and without progress."""
        return self._quiet + (now - self._quiet_from if self._quiet_from is not None else 0.0)

    def _silent(self, on_it: _OnIt, now: float) -> float:
        return now - max(on_it.since, self._moved_at)

    def _prefill(self, on_it: _OnIt) -> float:
        return 0.0 if on_it.started else on_it.prompt_tokens / self.prefill_rate

    def _fresh(self, now: float) -> bool:
        return now - self._scraped_at < self.hung_after / 2


def _differs(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and before != now
