import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.ops.merged import Family, packed
from gateway.tier import reports
from gateway.tier.frames import Report, Reported
from gateway.tier.reports import MOST_GONE, Reports


class Line:
    """A front that reports at once that it counted so much; or, with None, never."""

    def __init__(self, told: Reports, front: int, counted: int | None) -> None:
        self.told, self.front, self.counted = told, front, counted

    def send(self, question: Report) -> None:
        if self.counted is not None:
            self.told.take(self.front, reported(question.number, self.counted))


def reported(number: int | None, counted: int) -> Reported:
    return Reported(number, packed([Family("c", "What.", "counter", [("c_total", (), counted)])]))


async def total(told: Reports) -> float:
    text = (await told.exposition([])).decode()
    return sum(float(line.split()[1]) for line in text.splitlines() if not line.startswith("#"))


async def asked(told: Reports, counted: Mapping[int, int | None]) -> float:
    fronts: Any = {front: Line(told, front, count) for front, count in counted.items()}
    for front in fronts:
        told.came(front)
    await told.ask(fronts)
    return await total(told)


async def test_what_all_say_is_summed() -> None:
    told = Reports()
    assert await asked(told, {}) == 0
    assert await asked(told, {1: 5, 2: 7}) == 12
    assert await asked(told, {1: 6, 2: 7}) == 13


async def test_a_front_that_does_not_answer_counts_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORTED_WITHIN", 0.05)
    told = Reports()
    await asked(told, {1: 5, 2: 7})
    assert await asked(told, {1: 6, 2: None}) == 13


async def test_all_are_waited_for() -> None:
    told = Reports()
    fronts: Any = {front: Line(told, front, None) for front in (1, 2)}
    for first, second in ((1, 2), (2, 1)):
        asking = asyncio.create_task(told.ask(fronts))
        await asyncio.sleep(0)
        number = told._number
        told.take(first, reported(number, 3))
        await asyncio.sleep(0)
        assert not asking.done()
        told.take(second, reported(number, 4))
        await asyncio.wait_for(asking, reports.REPORTED_WITHIN / 2)


async def test_one_that_goes_meanwhile_is_not_waited_for() -> None:
    told = Reports()
    line: Any = Line(told, 1, None)
    asking = asyncio.create_task(told.ask({1: line}))
    await asyncio.sleep(0)
    told.take(1, reported(None, 9))
    assert not asking.done(), "what it says as it leaves answers no question"
    told.left(1)
    await asyncio.wait_for(asking, reports.REPORTED_WITHIN / 2)
    assert await total(told) == 9


async def test_an_answer_to_an_earlier_question_is_none_to_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "REPORTED_WITHIN", 0.05)
    told = Reports()
    line: Any = Line(told, 1, None)
    await told.ask({1: line})
    asking = asyncio.create_task(told.ask({1: line}))
    await asyncio.sleep(0)
    told.take(1, reported(1, 3))
    await asyncio.sleep(0)
    assert not asking.done()
    told.take(1, reported(2, 4))
    await asking
    assert await total(told) == 4


async def test_no_sum_falls_when_fronts_go_however_many() -> None:
    told = Reports()
    for front in range(1, 2 * MOST_GONE):
        assert await asked(told, {front: 1}) == front
        told.left(front)
        assert await total(told) == front


async def test_one_that_comes_back_is_not_counted_twice() -> None:
    told = Reports()
    await asked(told, {1: 5, 2: 7})
    told.left(1)
    assert await asked(told, {1: 6}) == 13
