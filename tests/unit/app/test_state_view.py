"""`/kvgate/state` out of what the owner of the decisions says, and how this process counts."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

import gateway
from gateway.admission.policy import Mode
from gateway.app.state_view import StateView
from gateway.config.settings import Settings
from gateway.ops.state import Decided, EndpointState, QueueState, UnknownEndpointError
from gateway.tokens.count import Source
from gateway.tokens.counter import NotHere
from gateway.tokens.features import Feature
from gateway.wire.request import Api

A = "127.0.0.1:8001"
DECIDED = Decided(
    endpoints=(EndpointState(id=A, url=f"http://{A}", healthy=True, state="up", reason="", since_seconds=1.5),),
    queues=(QueueState(model="m", depth=2),),
)


class World:
    """A gateway of one endpoint. It is the owner of the decisions, too, and keeps what it is told."""

    def __init__(self, *, in_pool: bool, not_here: Sequence[NotHere] = ()) -> None:
        self.told: list[tuple[str, str]] = []
        self.ready = True
        counter = SimpleNamespace(
            not_here=lambda: list(not_here),
            not_compared=lambda: frozenset({f"http://{A}"}),
            mode=Source.LOCAL,
            reason="it differs",
            takes_ids={f"http://{A}"}.__contains__,
        )
        endpoints = {name: SimpleNamespace(id=name, base_url=f"http://{name}") for name in (A, "127.0.0.1:8002")}
        pool = SimpleNamespace(name="m", counter=counter, endpoints=endpoints)
        self.directory = SimpleNamespace(pools={"m": pool} if in_pool else {}, ever_healthy=in_pool, on_demand=False)
        self.settings = Settings()
        self.view = StateView(lambda: self.settings, self.directory, self)

    async def decided(self) -> Decided:
        return DECIDED

    async def drain(self, endpoint_id: str) -> None:
        self._tell("drain", endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        self._tell("undrain", endpoint_id)

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        self.told.append((model, f"{adapter} {path}"))

    def _tell(self, what: str, endpoint_id: str) -> None:
        if endpoint_id != A:
            raise UnknownEndpointError(endpoint_id)
        self.told.append((what, endpoint_id))


async def test_endpoints_and_queues_are_those_of_the_owner() -> None:
    state = await World(in_pool=True).view.state()
    assert (state.endpoints, state.queues) == (DECIDED.endpoints, DECIDED.queues)
    assert state.version == gateway.__version__


async def test_it_is_ready_once_an_endpoint_was_healthy() -> None:
    before, after = [await World(in_pool=in_pool).view.state() for in_pool in (False, True)]
    assert (before.ready, before.draining, before.counting) == (False, False, ())
    assert (after.ready, after.draining) == (True, False)


async def test_it_is_not_ready_while_nobody_decides() -> None:
    world = World(in_pool=True)
    world.ready = False
    assert not (await world.view.state()).ready


async def test_what_is_not_counted_here_is_told_with_its_reason() -> None:
    missing = NotHere(Api.CHAT, Feature.TOOLS, Source.ENGINE, "it differs")
    (counting,) = (await World(in_pool=True, not_here=[missing]).view.state()).counting
    assert (counting.model, counting.mode, counting.reason) == ("m", "local", "it differs")
    assert [exception.model_dump() for exception in counting.not_here] == [
        {"api": "chat", "feature": "tools", "by": "engine", "reason": "it differs"}
    ]
    assert (counting.not_compared, counting.ids_to) == ((A,), (A,))


async def test_who_drains_is_not_ready_and_the_mode_is_the_one_in_force() -> None:
    world = World(in_pool=True)
    assert (await world.view.state()).mode == "enforce"
    world.settings = Settings.model_validate({"admission": {"mode": Mode.OBSERVE}})
    world.view.draining = True
    state = await world.view.state()
    assert (state.mode, state.draining, state.ready) == ("observe", True, False)


async def test_an_adapter_is_given_by_its_owner() -> None:
    world = World(in_pool=False)
    await world.view.give("m", "a", "/a")
    assert world.told == [("m", "a /a")]


async def test_an_endpoint_is_drained_and_taken_back_by_its_owner() -> None:
    world = World(in_pool=False)
    await world.view.drain(A)
    await world.view.undrain(A)
    assert world.told == [("drain", A), ("undrain", A)]
    for act in (world.view.drain, world.view.undrain):
        with pytest.raises(UnknownEndpointError):
            await act("127.0.0.1:9")
    assert world.told == [("drain", A), ("undrain", A)]


async def test_it_names_the_endpoints_that_get_token_ids() -> None:
    (counting,) = (await World(in_pool=True).view.state()).counting
    assert counting.ids_to == (A,)
