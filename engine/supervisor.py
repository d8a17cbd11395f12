"""The small parent of everything: keeps a set of programs running, and ends them in the right order."""

import asyncio
from collections.abc import Callable, Sequence

import httpx

from engine.events import SupervisorEvent
from engine.lifecycle import State
from engine.program import Program, Role
from engine.runner import Runner

_PROBE_TIMEOUT = 5.0
_STOP_ORDER = (Role.GATEWAY, Role.ENGINE)


class Supervisor:
    """Runs programs, each with a lifecycle of its own, so that one that crashes finds the others running.

    Args:
        programs: What to run.
        on_event: Told of everything that happens; `str(event)` is a line for a human.
    """

    def __init__(self, programs: Sequence[Program], on_event: Callable[[SupervisorEvent], None]) -> None:
        self._programs = tuple(programs)
        self._on_event = on_event

    async def run(self, stop: asyncio.Event) -> int:
        """Run until `stop` is set, or nothing useful can run any more; return the exit code: 0, or 1 for the latter.

        Gateways end first, within the bound of their policy, then the engines. When cancelled, everything is killed.
        """
        async with httpx.AsyncClient(timeout=_PROBE_TIMEOUT, trust_env=False) as client:

            async def probe(url: str) -> bool:
                try:
                    return (await client.get(url)).status_code == httpx.codes.OK
                except (httpx.TransportError, httpx.InvalidURL):
                    return False

            async with asyncio.TaskGroup() as tasks:
                runners = {
                    tasks.create_task(runner.run()): runner
                    for runner in (Runner(program, self._on_event, probe) for program in self._programs)
                }
                stopping = tasks.create_task(stop.wait())
                useless = await _first(stopping, runners)
                stopping.cancel()
                for role in _STOP_ORDER:
                    ending = [task for task, runner in runners.items() if runner.program.role is role]
                    for task in ending:
                        runners[task].stop()
                    if ending:
                        await asyncio.wait(ending)
        return 1 if useless else 0


async def _first(stopping: asyncio.Task[bool], runners: dict[asyncio.Task[State], Runner]) -> bool:
    """Wait for the first of: a stop is asked for (False), what still runs is of no use (True)."""
    while not stopping.done():
        running = [runner for task, runner in runners.items() if not task.done()]
        if _of_no_use(running, list(runners.values())):
            return True
        pending = {task for task in runners if not task.done()}
        await asyncio.wait({stopping, *pending}, return_when=asyncio.FIRST_COMPLETED)
    return False


def _of_no_use(running: Sequence[Runner], all_of_them: Sequence[Runner]) -> bool:
    """Whether a role that was to be filled is filled by nobody any more."""
    filled = {runner.program.role for runner in running}
    return any(runner.program.role not in filled for runner in all_of_them)
