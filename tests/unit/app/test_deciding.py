import asyncio

from structlog.testing import capture_logs

from gateway.app.deciding import DecidingProcess


class Process(DecidingProcess):
    fronts = 1

    @property
    def active(self) -> int:
        return self.fronts


async def test_its_end_waits_for_the_fronts() -> None:
    process = Process()
    draining = asyncio.create_task(process.drain(10.0))
    await asyncio.sleep(0)
    assert not draining.done()
    process.fronts = 0
    await draining


async def test_fronts_that_do_not_go_in_time_are_given_up_and_told() -> None:
    with capture_logs() as logs:
        await Process().drain(0.01)
    assert [log["fronts"] for log in logs] == [1]
