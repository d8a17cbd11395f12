"""PURE. Which engines have hung, or not answered their gateway, for longer than they may.

A gateway sees what a probe cannot: an engine core that stands still answers `/health` with 200 for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.events import BecameReady, Crashed, Stopped, SupervisorEvent
from engine.program import Program

_STUCK = frozenset({"hung", "down"})
_UNDECIDED = frozenset({"trial", "suspect", "blocked"})
"""It may hang, or show in a moment that it does not: no reason to begin to count, or to stop."""


@dataclass(frozen=True, slots=True)
class _Stuck:
    since: float
    reason: str


class Hangs:
    """Told of every event of the supervisor, and of what gateways say of their endpoints' states.

    Times are seconds of one monotonic clock.

    Args:
        find: the engine that listens there, by host and port; None where none of ours does.
    """

    def __init__(self, find: Callable[[str], Program | None]) -> None:
        self._find = find
        self._ready_at: dict[str, float] = {}
        self._stuck: dict[tuple[str, str], _Stuck] = {}
        """By gateway and address."""

    def on_event(self, event: SupervisorEvent, now: float) -> None:
        """Note since when an engine runs, and forget what a gateway said that has ended."""
        if isinstance(event, BecameReady):
            self._ready_at[event.program] = now
        elif isinstance(event, Crashed | Stopped):
            self._ready_at.pop(event.program, None)
            self._stuck = {key: stuck for key, stuck in self._stuck.items() if key[0] != event.program}

    def on_news(self, gateway: Program, news: str, now: float) -> None:
        """Take `STATE HOST:PORT REASON`, as a gateway tells it when a state changes."""
        state, address, reason = (*news.split(" ", 2), "", "")[:3]
        key = (gateway.name, address)
        if state in _STUCK:
            self._stuck.setdefault(key, _Stuck(now, reason))
        elif state not in _UNDECIDED:
            self._stuck.pop(key, None)

    def overdue(self, now: float) -> dict[str, str]:
        """The engines to start again, by name, each with the reason."""
        found = {}
        for (_, address), stuck in self._stuck.items():
            engine = self._find(address)
            if engine is None or (patience := engine.policy.hung_timeout) is None:
                continue
            # One that is just back has not been looked at yet.
            since = max(stuck.since, self._ready_at.get(engine.name, now))
            if now - since >= patience:
                found[engine.name] = f"It hung: {stuck.reason}, and nothing changed in {patience:g} s."
        return found
