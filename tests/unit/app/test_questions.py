import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.admission.events import EndpointId
from gateway.app.questions import Questions
from gateway.config.settings import Settings
from gateway.runtime.background import Background
from tests.unit.app.configured import access

A = EndpointId("127.0.0.1:1")
TIMEOUT = 5.0


def reached(**fields: str):
    return access(f"http://{A}", **fields)[A]


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    background = Background()
    yield background
    await background.stop()


@pytest.fixture
async def questions(background: Background) -> AsyncIterator[Questions]:
    questions = Questions(lambda: Settings.model_validate({"health": {"timeout": TIMEOUT}}), background)
    yield questions
    await questions.close()


async def test_a_question_carries_the_key_of_its_endpoint(questions: Questions) -> None:
    client = questions.open(A, reached(api_key="one"))
    assert questions.client(A) is client
    assert client.headers["authorization"] == "Bearer one"
    assert "authorization" not in questions.open(A, reached()).headers


@pytest.mark.usefixtures("hurried")
async def test_a_client_in_whose_place_another_comes_is_closed_once_its_questions_are_answered(
    questions: Questions,
) -> None:
    replaced = questions.open(A, reached())
    client = questions.open(A, reached())
    assert questions.client(A) is client
    await asyncio.sleep(2 * TIMEOUT - 0.1)
    assert not replaced.is_closed, "a question may be under way"
    await asyncio.sleep(0.2)
    assert replaced.is_closed
    assert not client.is_closed


@pytest.mark.usefixtures("hurried")
async def test_an_endpoint_that_is_dropped_is_asked_no_more(questions: Questions) -> None:
    client = questions.open(A, reached())
    questions.drop(A)
    questions.drop(A)
    with pytest.raises(KeyError):
        questions.client(A)
    assert not client.is_closed
    await asyncio.sleep(2 * TIMEOUT + 0.1)
    assert client.is_closed


async def test_every_client_is_closed_at_the_end(questions: Questions, background: Background) -> None:
    replaced, client = (questions.open(A, reached()) for _ in range(2))
    await asyncio.sleep(0)
    await background.stop()
    await questions.close()
    assert replaced.is_closed
    assert client.is_closed
