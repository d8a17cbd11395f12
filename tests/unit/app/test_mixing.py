import json

import httpx
import pytest

from gateway.admission.events import EndpointId
from gateway.app.mixing import AGAIN, Mixing
from gateway.endpoints.identity import Identity

ONE, OTHER = EndpointId("one"), EndpointId("other")


def engine(kind, name="m"):
    return Identity(names=(name,), loras=(), root=None, max_model_len=100, version=None, kind=kind)


def told(answer, status=200):
    """An answer as it comes over a connection: not read yet."""

    async def parts():
        yield json.dumps(answer).encode()

    return httpx.Response(status, content=parts())


class World:
    """Two endpoints: the routes of each, by what they count, and the one that serves already."""

    def __init__(self):
        self.serving = (OTHER, engine("vllm", name="base"))
        self.known = {OTHER: "vllm"}
        self.more = {ONE: 0, OTHER: 0}
        self.up = True
        self.asked = []
        self.models = {}
        self.now = 0.0
        self.mixing = Mixing(self, self, timeout=lambda: 1.0, clock=lambda: self.now)

    def of_another_kind(self, endpoint, identity):
        return self.serving if self.serving and self.serving[1].kind != identity.kind else None

    def differ(self, _endpoint, identity, other):
        return self.known.get(other, identity.kind) != identity.kind

    def base_url(self, endpoint):
        return f"http://{endpoint}"

    def client(self, endpoint):
        def answer(request):
            if not self.up:
                raise httpx.ConnectError("refused")
            fields = json.loads(request.content)
            self.asked.append((endpoint, request.url.path))
            self.models[endpoint] = fields["model"]
            if endpoint == ONE and fields.get("tools"):
                return told({"object": "error", "message": "no tools here"}, 400)
            if "messages" not in fields:
                return told({"count": 3, "tokens": [7, 7, 7]})
            count = len(fields["messages"]) + self.more[endpoint]
            if request.url.path == "/v1/messages/count_tokens":
                return told({"input_tokens": count})
            return told({"tokens": [7] * count, "count": count})

        return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.fixture
def world():
    return World()


async def test_beside_nobody_of_another_kind_nothing_is_asked(world):
    world.serving = None
    assert await world.mixing.misfit(ONE, engine("sglang")) is None
    world.serving = (OTHER, engine("sglang"))
    assert await world.mixing.misfit(ONE, engine("sglang")) is None
    assert world.asked == []


async def test_kinds_that_count_alike_fit(world):
    assert await world.mixing.misfit(ONE, engine("sglang")) is None
    assert {endpoint for endpoint, _ in world.asked} == {ONE, OTHER}
    assert world.models == {ONE: "m", OTHER: "base"}, "each under its own name"


async def test_a_difference_is_told_with_both_counts(world):
    world.more[ONE] = 2
    reason = await world.mixing.misfit(ONE, engine("sglang"))
    assert "beside other (vllm)" in reason
    assert "has 3 tokens here and 1 there" in reason


async def test_one_that_does_not_fit_does_not_take_the_place_of_one_that_is_down(world):
    world.more[ONE] = 2
    reason = await world.mixing.misfit(ONE, engine("sglang"))
    world.serving = None
    assert await world.mixing.misfit(ONE, engine("sglang")) == reason
    assert await world.mixing.misfit(ONE, engine("tgi")) is None, "it is another engine by now"
    world.serving = (OTHER, engine("vllm", name="base"))
    assert await world.mixing.misfit(ONE, engine("sglang"))
    world.serving, world.known[OTHER] = None, "sglang"
    assert await world.mixing.misfit(ONE, engine("sglang")) is None, "the other one is another engine by now"


async def test_a_kind_that_counts_nothing_does_not_fit(world):
    assert "ollama has no route that counts" in await world.mixing.misfit(ONE, engine("ollama"))
    world.serving = (OTHER, engine("tensorrt-llm"))
    assert "tensorrt-llm has no route that counts" in await world.mixing.misfit(ONE, engine("sglang"))
    assert world.asked == []


async def test_what_cannot_be_asked_now_does_not_fit_now(world):
    world.up = False
    assert "could not be asked" in await world.mixing.misfit(ONE, engine("sglang"))
    world.serving = None
    assert await world.mixing.misfit(ONE, engine("sglang")) is None, "the other one was about to go down"


async def test_it_is_compared_again_after_a_while_and_at_once_if_it_is_another(world):
    world.more[ONE] = 1
    assert await world.mixing.misfit(ONE, engine("sglang"))
    world.more[ONE] = 0
    asked = len(world.asked)
    assert await world.mixing.misfit(ONE, engine("sglang"))
    assert len(world.asked) == asked, "a probe comes every second"
    assert await world.mixing.misfit(ONE, engine("sglang", name="n")) is None
    world.more[ONE] = 1
    world.now += AGAIN
    assert await world.mixing.misfit(ONE, engine("sglang", name="n"))
