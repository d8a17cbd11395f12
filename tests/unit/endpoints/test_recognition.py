import json

import httpx
import pytest

from gateway.config.endpoint import Reached
from gateway.endpoints.foreign import OLLAMA_LENGTH
from gateway.endpoints.identity import UnidentifiedError
from gateway.endpoints.probe import Prober
from gateway.endpoints.recognition import find_kind, identify_as
from gateway.endpoints.replies import NoReply, Reply
from gateway.wire.engine_kinds import OLLAMA, SGLANG, TENSORRT_LLM, VLLM


class Engine:
    """Answers these routes, and 404 to all others."""

    def __init__(self, **routes):
        self.routes = {f"/{name}": body for name, body in routes.items()}
        self.asked = []

    def __call__(self, request):
        request.extensions["connected"]()
        self.asked.append(request.url.path)
        body = self.routes.get(request.url.path)
        return httpx.Response(404 if body is None else 200, content=_unread(body or b""))


async def _unread(body):
    yield body


@pytest.fixture
async def asked_of():
    clients = []

    def prober(engine):
        clients.append(httpx.AsyncClient(transport=httpx.MockTransport(engine)))
        return Prober(clients[-1], "http://engine", 1.0, lambda: 0.0)

    yield prober
    for client in clients:
        await client.aclose()


def models(owner, **card):
    return Reply(200, json.dumps({"data": [{"id": "m", "owned_by": owner, **card}]}).encode(), 0.0)


@pytest.mark.parametrize(
    ("owner", "routes", "kind"),
    [
        ("sglang", {}, "sglang"),
        ("me", {"info": b'{"router":"text-generation-router"}'}, "tgi"),
        ("library", {"": b"Ollama is running"}, "ollama"),
        ("me", {"info": b"{}", "": b"Welcome"}, "vllm"),
        ("me", {}, "vllm"),
    ],
)
async def test_a_kind_is_told_by_the_owner_of_its_models_or_by_its_sign(asked_of, owner, routes, kind):
    assert (await find_kind(asked_of(Engine(**routes)), Reached(), models(owner))).name == kind


async def test_one_that_names_itself_is_asked_no_more(asked_of):
    engine = Engine()
    assert await find_kind(asked_of(engine), Reached(), models("vllm")) is VLLM
    assert engine.asked == []


async def test_a_configured_kind_holds_unless_the_engine_says_otherwise(asked_of):
    prober = asked_of(Engine())
    configured = Reached(kind="sglang")
    assert await find_kind(prober, configured, models("me")) is SGLANG
    assert await find_kind(prober, configured, NoReply("gone")) is SGLANG
    with pytest.raises(UnidentifiedError, match="configured as `kind: sglang`, and says that it is vllm"):
        await find_kind(prober, configured, models("vllm"))


async def test_the_first_route_that_answers_tells_the_rest(asked_of):
    engine = Engine(get_server_info=b'{"version":"0.5.4"}')
    identity = await identify_as(SGLANG, asked_of(engine), Reached(), models("sglang", max_model_len=9), {})
    assert (identity.version, engine.asked) == ("0.5.4", ["/server_info", "/get_server_info"])


async def test_what_a_route_told_holds_until_it_tells_otherwise_or_is_gone(asked_of):
    engine, known, listed = Engine(server_info=b'{"version":"1"}'), {}, models("sglang", max_model_len=9)
    prober = asked_of(engine)

    async def version():
        return (await identify_as(SGLANG, prober, Reached(), listed, known)).version

    assert await version() == "1"
    engine.routes["/server_info"] = b"{" * 2**17  # more than is read
    assert await version() == "1"
    engine.routes = {"/get_server_info": b'{"version":"2"}'}
    assert await version() == "2"


async def test_an_ollama_has_the_longest_length_that_it_told_whatever_it_has_loaded_now(asked_of):
    engine, known = Engine(), {}
    prober = asked_of(engine)

    async def length(**loaded):
        told = [{"name": name, "context_length": context} for name, context in loaded.items()]
        engine.routes["/api/ps"] = json.dumps({"models": told}).encode()
        return (await identify_as(OLLAMA, prober, Reached(), models("library"), known)).max_model_len

    assert await length() == OLLAMA_LENGTH, "it has told none"
    assert await length(embeds=256) == 256
    assert await length(embeds=256, chats=32768) == 32768
    assert await length(embeds=256) == 32768
    assert await length() == 32768
    known.clear()  # it may be another one
    assert await length() == OLLAMA_LENGTH


async def test_a_length_is_as_configured_else_as_told(asked_of):
    listed = models("tensorrt_llm")
    identity = await identify_as(TENSORRT_LLM, asked_of(Engine()), Reached(max_model_len=7), listed, {})
    assert identity.max_model_len == 7
    with pytest.raises(UnidentifiedError, match="max_model_len: 8192"):
        await identify_as(TENSORRT_LLM, asked_of(Engine()), Reached(), listed, {})


@pytest.mark.parametrize(("reply", "said"), [(NoReply("gone"), "gone"), (Reply(401, b"", 0.0), "answered 401")])
async def test_one_that_lists_nothing_is_not_identified(asked_of, reply, said):
    with pytest.raises(UnidentifiedError, match=said):
        await identify_as(VLLM, asked_of(Engine()), Reached(), reply, {})
