import asyncio
import errno

import pytest
from structlog.testing import capture_logs

from gateway.runtime.background import Background, kept_up


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits: what would be waited is noted."""
    made: list[float] = []
    original = asyncio.sleep

    async def sleep(seconds: float) -> None:
        made.append(seconds)
        await original(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


async def test_work_that_fails_is_said_and_tried_again_until_it_succeeds(pauses: list[float]) -> None:
    errors: list[Exception] = [ValueError("one"), OSError(errno.EMFILE, "two"), *[RuntimeError("more")] * 8]

    async def work() -> None:
        if errors:
            raise errors.pop(0)

    with capture_logs() as lines:
        await kept_up("a tokenizer", work)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert [line["work"] for line in lines] == ["a tokenizer"] * 10
    assert [line["log_level"] for line in lines] == ["error"] * 10
    assert "two" in lines[1]["error"]


async def test_work_that_is_given_up_is_not_tried_again() -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(kept_up("work", work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_work_of_a_part_runs_until_it_finishes_or_all_is_stopped() -> None:
    background, cleaned = Background(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append(1)

    async def finishes() -> None:
        return None

    waiting = [background.spawn("waits", waits) for _ in range(3)]
    await background.spawn("finishes", finishes)
    assert not any(task.done() for task in waiting)
    await background.stop()
    assert all(task.cancelled() for task in waiting)
    assert len(cleaned) == 3
    await background.stop()


async def test_the_work_of_a_part_is_tried_again(pauses: list[float]) -> None:
    errors: list[Exception] = [ValueError("one")]

    async def work() -> None:
        if errors:
            raise errors.pop()

    background = Background()
    with capture_logs() as lines:
        await background.spawn("a tokenizer", work)
    assert pauses == [1]
    assert [line["work"] for line in lines] == ["a tokenizer"]


async def test_other_parts_go_on_when_one_is_stopped() -> None:
    one, other = Background(), Background()
    ended = one.spawn("ended", asyncio.Event().wait)
    goes_on = other.spawn("goes on", asyncio.Event().wait)
    await one.stop()
    assert ended.cancelled()
    assert not goes_on.done()
    await other.stop()
    assert goes_on.cancelled()
