"""Restarts engines that their gateway finds hung, or that do not answer it, for longer than they may."""

import asyncio
from collections.abc import Callable

from engine.events import BecameReady, Crashed, Stopped, SupervisorEvent
from engine.program import Program

_STUCK = frozenset({"hung", "down"})
_ON_TRIAL = "trial"
"""It hung, and has one request to show that it does not: no reason to begin to count, or to stop."""


class Hangs:
    """Told of every event of the supervisor, and of what gateways say of their endpoints' states.

    A gateway sees what a probe cannot: an engine core that stands still answers `/health` with 200 for ever.

    Args:
        find: the engine that listens there, by host and port; None where none of ours does.
        restart: ends an engine that hangs, by its name, for a reason.
    """

    def __init__(self, find: Callable[[str], Program | None], restart: Callable[[str, str], None]) -> None:
        self._find = find
        self._restart = restart
        self._ready_at: dict[str, float] = {}
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}
        """By gateway and address."""

    def on_event(self, event: SupervisorEvent) -> None:
        """Note since when an engine runs, and forget what a gateway said that has ended."""
        if isinstance(event, BecameReady):
            self._ready_at[event.program] = _now()
        elif isinstance(event, Crashed | Stopped):
            for key in [key for key in self._timers if key[0] == event.program]:
                self._timers.pop(key).cancel()

    def on_news(self, gateway: Program, news: str) -> None:
        """Take `STATE HOST:PORT REASON`, as a gateway tells it when a state changes."""
        state, address, reason = (*news.split(" ", 2), "", "")[:3]
        key = (gateway.name, address)
        if state in _STUCK and key not in self._timers:
            self._await(key, reason)
        elif state not in _STUCK | {_ON_TRIAL} and (timer := self._timers.pop(key, None)):
            timer.cancel()

    def close(self) -> None:
        """Restart nothing any more."""
        for timer in self._timers.values():
            timer.cancel()

    def _await(self, key: tuple[str, str], reason: str) -> None:
        engine = self._find(key[1])
        if engine is not None and engine.policy.hung_timeout is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(
                engine.policy.hung_timeout, self._overdue, key, reason
            )

    def _overdue(self, key: tuple[str, str], reason: str) -> None:
        del self._timers[key]
        engine = self._find(key[1])
        if engine is None or engine.policy.hung_timeout is None:
            return
        # One that is just back has not been looked at yet.
        if _now() - self._ready_at.get(engine.name, _now()) >= engine.policy.hung_timeout:
            self._restart(engine.name, f"It hung: {reason}, and nothing changed in {engine.policy.hung_timeout:g} s.")
        self._await(key, reason)


def _now() -> float:
    return asyncio.get_running_loop().time()
