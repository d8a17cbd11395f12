"""`kvgate serve` as the parent of engines, or of several processes that serve."""

import asyncio

from engine.cache import SetupError
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.config.sources import Sources
from gateway.ops.logs import configure, for_people
from gateway.runtime.interrupts import Stop
from gateway.serve.checks import preflight
from gateway.serve.choice import Choices
from gateway.serve.discovery import Discovery
from gateway.serve.foresight import foreseen
from gateway.serve.reload import Deployment
from gateway.serve.running import fail_in_log, way_out
from gateway.serve.supervision_log import SupervisionLog, engine_logs
from gateway.server.server import PortTakenError

_LOOK = 30.0
"""Seconds between two looks at the cards."""


def supervise(settings: Settings, sources: Sources, discovery: Discovery, choices: Choices, *, verbose: bool) -> int:
    """Launch and watch what the settings ask for, until told to end. Returns the exit code, or exits with one."""
    configure(settings.log)
    people = for_people(settings.log)
    log = SupervisionLog(engine_logs(settings.server.where) if people and not verbose else None, for_people=people)
    try:
        preflight(settings)
        for line in foreseen(settings):
            log.say(line)
        deployment = Deployment(discovery, sources.read, log, log.say)
    except PortTakenError as error:
        fail_in_log(way_out(error), settings.log)
    except (ConfigurationError, SetupError) as error:
        fail_in_log(str(error), settings.log)
    code = asyncio.run(_run(deployment, settings, choices, log))
    log.last_words()
    return code


async def _run(deployment: Deployment, settings: Settings, choices: Choices, log: SupervisionLog) -> int:
    stop = Stop(asyncio.Event(), lambda: log.say(_stopping(settings)))
    stop.listen(asyncio.get_running_loop())
    watching = asyncio.create_task(_watch(choices, log))
    try:
        return await deployment.run(stop.event) or stop.code
    finally:
        watching.cancel()


async def _watch(choices: Choices, log: SupervisionLog) -> None:
    """Tell what others do to the memory that engines were chosen by."""
    while True:
        await asyncio.sleep(_LOOK)
        for line in await asyncio.to_thread(list, choices.news()):
            log.say(line)


def _stopping(settings: Settings) -> str:
    requests, engines = (
        settings.server.shutdown_timeout,
        max((model.engine.stop_timeout for model in settings.models if model.engine is not None), default=None),
    )
    have = f"requests have {requests:g} s" + (f", engines {engines:g} s" if engines is not None else "")
    return f"stopping: {have}; Ctrl-C again ends it now"
