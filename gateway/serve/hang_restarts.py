"""PURE. The watch for engines that hang, or do not answer their gateway, for too long.

A gateway sees more than a probe: an engine answers `/health` with 200 for ever, even when its core stands still.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.events import BecameReady, Crashed, Stopped, SupervisorEvent
from engine.program import Program

_STUCK = frozenset({"hung", "down"})
_UNDECIDED = frozenset({"trial", "suspect", "blocked"})
"""The engine may hang or not. It neither starts nor stops the count."""


@dataclass(frozen=True, slots=True)
class _Stuck:
    since: float
    reason: str


class Hangs:
    """Follows the supervisor's events and the gateways' news of their endpoints' states.

    Times are seconds of one monotonic clock.

    Args:
        find: returns the engine at a host and port; None if it is none of ours.
    """

    def __init__(self, find: Callable[[str], Program | None]) -> None:
        self._find = find
        self._ready_at: dict[str, float] = {}
        self._stuck: dict[tuple[str, str], _Stuck] = {}
        """Keyed by gateway and address."""

    def on_event(self, event: SupervisorEvent, now: float) -> None:
        """Note since when an engine runs. Forget the news of a gateway that ended."""
        if isinstance(event, BecameReady):
            self._ready_at[event.program] = now
        elif isinstance(event, Crashed | Stopped):
            self._ready_at.pop(event.program, None)
            self._stuck = {key: stuck for key, stuck in self._stuck.items() if key[0] != event.program}

    def on_news(self, gateway: Program, news: str, now: float) -> None:
        """Handle `STATE HOST:PORT REASON`, which a gateway sends when a state changes."""
        state, address, reason = (*news.split(" ", 2), "", "")[:3]
        key = (gateway.name, address)
        if state in _STUCK:
            self._stuck.setdefault(key, _Stuck(now, reason))
        elif state not in _UNDECIDED:
            self._stuck.pop(key, None)

    def overdue(self, now: float, decides: str) -> dict[str, str]:
        """The engines to restart, by name, each with the reason.

        `decides`: the gateway whose news count. One that leaves may not hear of any change.
        """
        found = {}
        for (gateway, address), stuck in self._stuck.items():
            engine = self._find(address)
            if gateway != decides or engine is None or (patience := engine.policy.hung_timeout) is None:
                continue
            # The gateway has not checked an engine that is just back.
            since = max(stuck.since, self._ready_at.get(engine.name, now))
            if now - since >= patience:
                found[engine.name] = f"It hung: {stuck.reason}, and nothing changed in {patience:g} s."
        return found
