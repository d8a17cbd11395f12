import asyncio
import errno

import pytest
from structlog.testing import capture_logs

from gateway.runtime.background import kept_up


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
