import asyncio
import json
from types import SimpleNamespace

import pytest

from gateway.admission.outcomes import Outcome
from gateway.endpoints.identity import Identity
from gateway.relay.client_identity import Client
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.models import list_models


def pool(name, *identities):
    names = dict.fromkeys([name, *(other for identity in identities for other in (*identity.names, *identity.loras))])
    return SimpleNamespace(name=name, names=tuple(names), identities=identities, max_model_len=100)


def identity(*names, loras=()):
    return Identity(names=names, loras=loras, root=None, max_model_len=100, version="0.32.0")


ANYBODY = Client("")


def plane_of(*pools, awaited=()):
    directory = SimpleNamespace(
        pools={pool.name: pool for pool in pools},
        lookup=lambda name: next(pool for pool in pools if name in pool.names),
        awaited=awaited,
        undiscovered=lambda _model: bool(awaited),
        starting=lambda _model: [],
    )
    return SimpleNamespace(directory=directory)


async def listed(plane, path="/v1/models", client=ANYBODY):
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"path": path, "headers": [(b"x-request-id", b"mine")]}
    exchange = Exchange.begin(scope, send, asyncio.get_running_loop().time, None)
    exchange.client = client
    assert await list_models(plane, scope, exchange) is Outcome.COMPLETED
    start, body = sent
    headers = dict(start["headers"])
    assert (start["status"], headers[b"x-request-id"]) == (200, b"mine")
    assert int(headers[b"content-length"]) == len(body["body"])
    return json.loads(body["body"])


async def test_a_name_that_two_models_have_is_that_of_the_one_that_serves_it():
    plane = plane_of(pool("a", identity("a", "chat")), pool("b", identity("b", "chat")))
    told = [(card["id"], card["root"]) for card in (await listed(plane))["data"]]
    assert told == [("a", "a"), ("chat", "a"), ("b", "b")]


async def test_every_name_of_every_pool_is_a_model_and_an_adapter_names_its_parent():
    plane = plane_of(pool("a", identity("a", "alias", loras=("adapter",)), identity("a")), pool("b", identity("b")))
    answer = await listed(plane)
    assert answer["object"] == "list"
    told = [(card["id"], card["root"], card["parent"], card["max_model_len"]) for card in answer["data"]]
    assert told == [("a", "a", None, 100), ("alias", "a", None, 100), ("adapter", "a", "a", 100), ("b", "b", None, 100)]
    assert {(card["object"], card["owned_by"]) for card in answer["data"]} == {("model", "vllm")}


async def test_a_model_whose_endpoint_was_not_reached_yet_is_listed_by_its_configured_name():
    answer = await listed(plane_of(pool("a", identity("a")), awaited=("to come",)))
    assert [(card["id"], card["max_model_len"]) for card in answer["data"]] == [("a", 100), ("to come", None)]


@pytest.mark.parametrize("name", ["a", "org/name"])
async def test_one_model_is_told_by_its_name(name):
    plane = plane_of(pool("a", identity("a", "org/name")))
    assert (await listed(plane, f"/v1/models/{name}"))["id"] == name


@pytest.mark.parametrize(
    ("plane", "path", "outcome"),
    [
        (plane_of(), "/v1/models", Outcome.NO_ENDPOINT),
        (plane_of(pool("a", identity("a"))), "/v1/models/b", Outcome.MODEL_NOT_FOUND),
        (plane_of(awaited=("a",)), "/v1/models/b", Outcome.NO_ENDPOINT),
    ],
    ids=["nothing known", "no such model", "not yet known"],
)
async def test_what_cannot_be_listed_is_refused(plane, path, outcome):
    with pytest.raises(RefusedError) as refused:
        await listed(plane, path)
    assert refused.value.outcome is outcome
    assert (refused.value.retry_after is None) is (outcome is Outcome.MODEL_NOT_FOUND)


async def test_a_client_sees_the_models_that_it_may_use():
    plane = plane_of(pool("a", identity("a", loras=("adapter",))), pool("b", identity("b")))
    answer = await listed(plane, client=Client("alice", models=frozenset({"adapter", "b"})))
    assert [card["id"] for card in answer["data"]] == ["adapter", "b"]
    assert (await listed(plane, client=Client("bob", models=frozenset())))["data"] == []
