import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.tokens.engine_count import EngineCounter
from gateway.tokens.hand_over import AUDITED, HandOver
from gateway.wire.token_ids import IdsField
from tests.unit.tokens.wire import engine_at

URL = "http://engine"
IDS = [7, 8, 9]

Answer = Callable[[dict[str, Any]], httpx.Response]


def used(tokens: object) -> httpx.Response:
    return httpx.Response(200, json={"usage": {"prompt_tokens": tokens}})


def takes(field: IdsField | None) -> Answer:
    def answer(fields: dict[str, Any]) -> httpx.Response:
        handed = {IdsField.OWN: fields, IdsField.TRANSFER: fields.get("kv_transfer_params", {})}
        ids = handed[field].get("prompt_token_ids") if field is not None else None
        return used(len(IDS) if ids is None else len(ids))

    return answer


async def probed(answer: Answer, chance: float = 0.5, *, answered: bool = True) -> tuple[HandOver, list[str]]:
    refusals: list[str] = []
    target = engine_at(URL, lambda request: answer(json.loads(request.content)))
    hand_over = HandOver("m", EngineCounter(lambda: (target,), lambda: 5), refusals.append, lambda: chance)
    assert await hand_over.probe(target, IDS) is answered
    return hand_over, refusals


@pytest.mark.parametrize("field", [*IdsField, None])
async def test_an_endpoint_takes_ids_in_the_field_that_changes_its_usage(field: IdsField | None) -> None:
    hand_over, _ = await probed(takes(field))
    assert hand_over.field(URL) is field


@pytest.mark.parametrize(
    ("answer", "answered"),
    [
        (lambda _: httpx.Response(400, json={"error": {"message": "unknown field"}}), True),
        (lambda _: httpx.Response(404), True),
        (lambda _: httpx.Response(500), False),
        (lambda _: httpx.Response(200, content=b"nonsense"), False),
        (lambda _: used(-6), False),
        (lambda _: used("6"), False),
    ],
)
async def test_an_endpoint_that_answers_otherwise_gets_no_ids(answer: Answer, *, answered: bool) -> None:
    hand_over, _ = await probed(answer, answered=answered)
    assert hand_over.field(URL) is None


async def test_an_endpoint_that_refuses_one_field_is_asked_for_the_other() -> None:
    def answer(fields: dict[str, Any]) -> httpx.Response:
        return httpx.Response(400) if "prompt_token_ids" in fields else takes(IdsField.TRANSFER)(fields)

    hand_over, _ = await probed(answer)
    assert hand_over.field(URL) is IdsField.TRANSFER


@pytest.mark.parametrize(("chance", "drawn"), [(AUDITED - 1e-9, None), (AUDITED, IdsField.OWN)])
async def test_a_share_of_prompts_goes_without(chance: float, drawn: IdsField | None) -> None:
    hand_over, _ = await probed(takes(IdsField.OWN), chance)
    assert hand_over.drawn(URL) is drawn


async def test_an_endpoint_whose_usage_differs_gets_no_more() -> None:
    hand_over, refusals = await probed(takes(IdsField.OWN))
    hand_over.settle(URL, 100, 100)
    assert hand_over.drawn(URL) is IdsField.OWN
    hand_over.settle(URL, 100, 12)
    assert hand_over.drawn(URL) is None
    assert refusals == [f"{URL} was given 100 token ids, and reported a prompt of 12 tokens"]
