"""PURE. The requests on an endpoint and how long it has had work and made no progress.

Progress is a token that the relay saw, or an engine step that shows in its metrics: a counter of tokens moved, or KV
usage rose. That usage or the running requests fall proves nothing: a paused engine still lets go of what is aborted
(measured, 0.32).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.admission.events import RequestId
from gateway.endpoints.exposition import EngineMetrics

PREFILL_TIMES = 4.0
"""A prefill may take so many times what it should before the engine counts as hung."""

_ASSUMED_TOKENS = 2000.0
_ASSUMED_SECONDS = 10.0
"""Until measured, prefill runs at 200 tokens/s: a large model on a CPU, so that no slow engine is called hung."""
_KEEP = 0.9
"""What a measurement of the prefill rate keeps of those before."""


@dataclass(slots=True)
class _OnIt:
    prompt_tokens: int
    streams: bool
    since: float
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
        self._quiet = 0.0
        self._quiet_from: float | None = None
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

    def dispatched(self, request: RequestId, prompt_tokens: int, now: float, *, streams: bool = True) -> None:
        """A request was sent; `streams` says that its tokens will be seen one by one."""
        self._requests[request] = _OnIt(prompt_tokens, streams, now)
        if self._quiet_from is None:
            self._quiet_from = now

    def finished(self, request: RequestId, now: float) -> None:
        """A request has left, however it ended. That alone is no progress: its client may have given up."""
        self._requests.pop(request, None)
        if not self._requests and self._quiet_from is not None:
            self._quiet += now - self._quiet_from
            self._quiet_from = None

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
        self.restart(now)

    def scraped(self, metrics: EngineMetrics, now: float) -> bool:
        """Take a scrape in; True where it shows that the engine made a step since the one before."""
        before, self._metrics, self._scraped_at = self._metrics, metrics, now
        if before is None:
            return False
        moved = (
            _differs(before.generation_tokens, metrics.generation_tokens)
            or _differs(before.prompt_tokens, metrics.prompt_tokens)
            or (metrics.kv_usage or 0.0) > (before.kv_usage or 0.0)
        )
        if moved:
            self.restart(now)
        return moved

    def restart(self, now: float) -> None:
        """Begin to measure the silence anew."""
        self._quiet = 0.0
        self._quiet_from = now if self._requests else None

    def stalled(self, now: float) -> str | None:
        """Why the endpoint counts as hung, None while it does not."""
        watched = [r for r in self._requests.values() if r.streams or self._counts_tokens(now)]
        if not watched or self._quiet_from is None:
            return None
        quiet = self._quiet + now - self._quiet_from
        # Prefills end one by one, so the silence to expect is that of the longest.
        prefill = max((r.prompt_tokens for r in watched if not r.started), default=0) / self.prefill_rate
        if quiet < max(self.hung_after, PREFILL_TIMES * prefill):
            return None
        return f"no progress for {quiet:.0f} s with {len(self._requests)} requests in flight"

    def _counts_tokens(self, now: float) -> bool:
        """Whether the engine's metrics would show the progress of a request that does not stream."""
        fresh = now - self._scraped_at < self.hung_after / 2
        return fresh and self._metrics is not None and self._metrics.generation_tokens is not None


def _differs(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and before != now
