import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.admission.events import FRONT_BITS, Arrived, Capacity, Demand, EndpointId, RequestId
from gateway.app.reign import Reign
from gateway.config.settings import Settings
from gateway.endpoints.identity import Identity
from gateway.tier.frames import VERSION, Came, Declares, Hello, Sent, from_owner
from tests.unit.app.configured import access
from tests.unit.tier.lines import Other
from tests.until import until

ONE = EndpointId("127.0.0.1:1")
SETTINGS = Settings.model_validate({"server": {"state_dir": "none"}, "health": {"interval": 0.05}})


@asynccontextmanager
async def reign_of(
    sections: dict[str, Any] | None = None, *, fronts: int | None = 1, before: Callable[[], None] | None = None
) -> AsyncIterator[Reign]:
    """A reign over one endpoint, at which nobody listens."""
    settings = SETTINGS if sections is None else Settings.model_validate(SETTINGS.model_dump() | sections)
    reign = Reign(settings, access(f"http://{ONE}"), {}, fronts, before=before)
    reign.begin()
    try:
        yield reign
    finally:
        await reign.end()


def serves(reign: Reign) -> None:
    capacity = Capacity(max_model_len=1000, kv_blocks=100)
    reign._owner.cores.up(ONE, Identity(("m",), (), None, 1000, "0.32.0"), capacity)


async def join(reign: Reign) -> Other:
    front = Other(reign.hall.line(), from_owner)
    front.say(Hello(VERSION, 1))
    front.say(Declares([], [], [], last=True))
    await front.heard()
    return front


async def asked(front: Other, number: int) -> list[Sent]:
    """What the owner answers a request."""
    front.say(Came("m", Arrived(RequestId((1 << FRONT_BITS) + number), Demand((10,), 10))))
    return [message for message in await front.heard() if isinstance(message, Sent)]


async def test_within_its_share_it_grants_that_share_of_each_limit() -> None:
    limited = {"auth": {"keys": [{"name": "", "key": "k", "limits": {"requests_per_minute": 10}}]}}
    async with reign_of(limited) as reign:
        serves(reign)
        front = await join(reign)
        limits: list[object] = []
        for number, share in enumerate((1.0, 0.5, 0.0, 0.5)):
            reign.restrict(share)
            for sent in await asked(front, number):
                assert sent.dispatch.standing is not None
                assert sent.dispatch.standing.requests is not None
                limits.append(sent.dispatch.standing.requests.limit)
        assert limits == [10, 5, 5, 5], "what waits goes by the same limits as before"


async def test_it_decides_for_its_fronts_within_its_share() -> None:
    async with reign_of() as reign:
        serves(reign)
        front = await join(reign)
        assert len(await asked(front, 1)) == 1
        reign.restrict(0.0)
        assert await asked(front, 2) == []
        reign.restrict(1.0)
        assert len([message for message in await front.heard() if isinstance(message, Sent)]) == 1


async def test_who_leaves_decides_nothing_more_at_once() -> None:
    async with reign_of() as reign:
        serves(reign)
        front = await join(reign)
        reign.leave()
        assert await asked(front, 1) == []
        assert front.aborted
        assert reign.hall.fronts == 0
        reign.leave()  # it may be left, and ended, again


async def test_it_is_looked_at_before_each_event() -> None:
    looks: list[int] = []
    async with reign_of(before=lambda: looks.append(1)) as reign:
        serves(reign)
        front = await join(reign)
        count = len(looks)
        await asked(front, 1)
        assert len(looks) > count


async def test_gauges_are_read_once_each_endpoint_was_probed() -> None:
    async with reign_of() as reign:
        reading = asyncio.create_task(reign.gauged())
        async with asyncio.timeout(30):
            await reading  # a refused connection is an answer, too
        assert [monitor.probed.is_set() for monitor in reign._owner.monitors.values()] == [True]
        assert [status.id for status in reign.statuses] == [ONE]


async def test_an_endpoint_that_is_not_configured_any_more_is_not_watched() -> None:
    async with reign_of() as reign:
        reign.go_by(SETTINGS, access("http://127.0.0.1:2"))
        await until(lambda: [status.id for status in reign.statuses] == [EndpointId("127.0.0.1:2")])


async def test_gauges_of_an_endpoint_that_is_removed_are_not_waited_for() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # it takes connections and answers nothing
        port = silent.getsockname()[1]
        patient = Settings.model_validate(SETTINGS.model_dump() | {"health": {"interval": 0.05, "timeout": 600}})
        reign = Reign(patient, access(f"http://127.0.0.1:{port}"), {}, 1)
        reign.begin()
        try:
            reading = asyncio.create_task(reign.gauged())
            await asyncio.sleep(0.3)
            assert not reading.done()
            reign.go_by(SETTINGS, access(f"http://{ONE}"))
            async with asyncio.timeout(60):
                await reading
        finally:
            await reign.end()
