import asyncio

import msgspec
import pytest

from gateway.admission.events import Arrived, Demand, RequestId
from gateway.admission.snapshot import Turn
from gateway.ops.state import UnknownEndpointError, UnknownModelError
from gateway.pools.admission import RejectedError
from gateway.tier.frames import Answer, AskTurn, Explain, Look, Scrape, ShowState
from gateway.tier.questions import ANSWERED_WITHIN, Questions
from tests.unit.ops.pictures.pictures import picture
from tests.unit.tier.lines import turns

pytestmark = pytest.mark.usefixtures("hurried")

ARRIVAL = Arrived(RequestId(1), Demand((10,), 10))


@pytest.fixture
def asked():
    return []


@pytest.fixture
def questions(asked):
    return Questions(asked.append)


async def test_the_text_of_the_metrics_is_the_owners(questions, asked):
    text = asyncio.create_task(questions.exposition(openmetrics=True))
    await turns()
    assert asked == [*questions] == [Scrape(1, openmetrics=True)]
    questions.answered(Answer(1, b"kvgate_fronts 2"))
    assert await text == b"kvgate_fronts 2"
    assert [*questions] == []


async def test_the_picture_is_the_owners(questions, asked):
    told = asyncio.create_task(questions.picture(7.0))
    await turns()
    assert asked == [Look(1, 7.0)]
    questions.answered(Answer(1, msgspec.json.encode(picture())))
    assert await told == picture()


@pytest.mark.parametrize("how", ["drain", "undrain"])
async def test_an_endpoint_that_the_owner_does_not_know_is_an_error(questions, asked, how):
    told = asyncio.create_task(getattr(questions, how)("nobody"))
    await turns()
    assert asked == [ShowState(1, **{how: "nobody"})]
    questions.answered(Answer(1, None))
    with pytest.raises(UnknownEndpointError):
        await told


async def test_an_adapter_is_given_to_a_model_that_the_owner_knows(questions, asked):
    for number, answer in ((1, b"{}"), (2, None)):
        told = asyncio.create_task(questions.give("m", "a", "/a"))
        await turns()
        assert asked[-1] == ShowState(number, give=("m", "a", "/a"))
        questions.answered(Answer(number, answer))
        if answer is None:
            with pytest.raises(UnknownModelError):
                await told
        else:
            await told


async def test_a_model_that_the_owner_does_not_know_is_a_refusal(questions, asked):
    told = asyncio.create_task(questions.explained("m", ARRIVAL))
    await turns()
    assert asked == [Explain(1, "m", ARRIVAL)]
    questions.answered(Answer(1, None))
    with pytest.raises(RejectedError):
        await told


async def test_a_question_is_not_asked_for_ever(questions):
    clock = asyncio.get_running_loop().time
    before = clock()
    with pytest.raises(TimeoutError):
        await questions.explained("m", ARRIVAL)
    assert clock() - before == pytest.approx(ANSWERED_WITHIN, abs=0.1)
    assert [*questions] == []
    questions.answered(Answer(1, b"late"))


@pytest.mark.parametrize(("body", "turn"), [(b'{"position":3,"eta":2.5}', Turn(3, 2.5)), (None, None)])
async def test_where_a_request_stands_is_the_owners_to_say(questions, asked, body, turn):
    told = asyncio.create_task(questions.turn(7))
    await turns()
    assert asked == [AskTurn(1, 7)]
    questions.answered(Answer(1, body))
    assert await told == turn
