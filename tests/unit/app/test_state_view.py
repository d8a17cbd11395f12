"""`/kvgate/state` out of a real admission core and what the monitors last reported."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Capacity, Demand, EndpointId, EndpointUp, Event, Observed, RequestId
from gateway.admission.policy import Mode, Policy
from gateway.app.state_view import StateView
from gateway.config.settings import Settings
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.endpoints.listener import EndpointStatus
from gateway.endpoints.totals import Totals
from gateway.ops.state import EndpointState, EngineTotals, UnknownEndpointError
from gateway.tokens.count import Source
from gateway.tokens.counter import NotHere
from gateway.tokens.features import Feature
from gateway.wire.request import Api

A = EndpointId("127.0.0.1:8001")
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, block_size=16, max_num_seqs=2)
IDENTITY = Identity(names=("m", "alias"), loras=("lora",), root=None, max_model_len=1000, version="0.32.0")


class Monitor:
    """Keeps what it is told, and has a status."""

    pace = None

    def __init__(self, **known: Any) -> None:
        self.told: list[str] = []
        fields: dict[str, Any] = {
            "id": A, "url": f"http://{A}/", "state": State.STARTING, "reason": "nobody listens there", "since": 90.0,
            "healthy": False, "was_healthy": False, "identity": None, "capacity": None, "in_flight": 0,
            "missing_metrics": (), "scraped_at": None, "totals": Totals(),
        }  # fmt: skip
        self.status = EndpointStatus(**{**fields, **known})

    def drain(self) -> None:
        self.told.append("drain")

    def undrain(self) -> None:
        self.told.append("undrain")


class World:
    """A gateway of one endpoint, at second 100."""

    def __init__(self, monitor: Monitor, *, in_pool: bool, not_here: Sequence[NotHere] = ()) -> None:
        self.core = AdmissionController(Policy())
        counter = SimpleNamespace(not_here=lambda: list(not_here), mode=Source.LOCAL, reason="it differs")
        pool = SimpleNamespace(name="m", counter=counter, driver=SimpleNamespace(controller=self.core))
        endpoint = SimpleNamespace(id=A, base_url=f"http://{A}", monitor=monitor, pool=pool if in_pool else None)
        self.directory = SimpleNamespace(
            endpoints={A: endpoint}, pools={"m": pool} if in_pool else {}, ever_healthy=in_pool
        )
        self.settings = Settings()
        self.view = StateView(lambda: self.settings, self.directory, lambda: 100.0)

    def happen(self, *events: Event, at: float = 99.0) -> None:
        for event in events:
            self.core.handle(event, at)

    @property
    def endpoint(self) -> EndpointState:
        (endpoint,) = self.view.state().endpoints
        return endpoint


def arrived(number: int, size: int = 0) -> Arrived:
    return Arrived(RequestId(number), Demand((100,), 50), body_bytes=size)


def serving(**known: Any) -> World:
    monitor = Monitor(state=State.UP, healthy=True, was_healthy=True, identity=IDENTITY, capacity=CAPACITY, **known)
    world = World(monitor, in_pool=True)
    world.happen(EndpointUp(A, CAPACITY), at=90.0)
    return world


def test_an_endpoint_that_was_never_reached_shows_why_and_nothing_it_cannot_know() -> None:
    world = World(Monitor(), in_pool=False)
    state = world.view.state()
    assert (state.ready, state.draining, state.queues, state.counting) == (False, False, (), ())
    endpoint = world.endpoint
    assert (endpoint.healthy, endpoint.state, endpoint.reason) == (False, "starting", "nobody listens there")
    assert endpoint.since_seconds == 10.0
    unknown = ("gate", "kv", "max_num_seqs", "max_model_len", "version", "scrape_age_seconds", "model")
    assert {getattr(endpoint, name) for name in unknown} == {None}
    assert (endpoint.models, endpoint.in_flight, endpoint.engine) == ((), 0, EngineTotals())


def test_one_that_serves_shows_what_it_is_and_what_the_account_holds() -> None:
    world = serving(scraped_at=97.5, missing_metrics=("vllm:x",), totals=Totals(1, 20, 30, 20, 5))
    world.happen(arrived(1), Observed(A, 99.0, 0.25, 1, 0, 0.0))
    endpoint = world.endpoint
    assert world.view.state().ready
    assert endpoint.model == "m"
    assert endpoint.models == ("m", "alias", "lora")
    assert (endpoint.max_model_len, endpoint.max_num_seqs, endpoint.version) == (1000, 2, "0.32.0")
    assert (endpoint.in_flight, endpoint.sequences, endpoint.peak_sequences) == (1, 1, 1)
    assert endpoint.kv is not None
    assert (endpoint.kv.blocks, endpoint.kv.block_size, endpoint.kv.observed) == (100, 16, 0.25)
    assert endpoint.kv.ledger == 0.07, "101 tokens are 7 blocks"
    assert endpoint.kv.forecast is not None
    assert endpoint.kv.forecast > endpoint.kv.ledger
    assert endpoint.gate is not None
    assert (endpoint.gate.open, endpoint.gate.reason) == (True, None)
    assert (endpoint.scrape_age_seconds, endpoint.missing_metrics) == (2.5, ("vllm:x",))
    assert endpoint.engine == EngineTotals(
        preemptions=1, prompt_tokens=20, generated_tokens=30, prefix_queried_tokens=20, prefix_hit_tokens=5
    )


def test_a_closed_gate_names_every_rule_that_closes_it() -> None:
    world = serving()
    world.happen(arrived(1), arrived(2), at=96.0)
    gate = world.endpoint.gate
    assert gate is not None
    assert (gate.open, gate.reason) == (False, "sequences")
    for second in (97.0, 98.0):
        world.happen(Observed(A, second, 0.2, 2, 9, second), at=second)
    gate = world.endpoint.gate
    assert gate is not None
    assert (gate.open, gate.reason) == (False, "sequences, engine_waiting")


def test_a_queue_shows_how_much_waits_and_how_long() -> None:
    world = serving()
    (queue,) = world.view.state().queues
    assert (queue.model, queue.depth, queue.bytes, queue.oldest_seconds) == ("m", 0, 0, None)
    world.happen(arrived(1), arrived(2))
    world.happen(arrived(3, size=500), at=99.25)
    world.happen(arrived(4, size=300), at=99.5)
    (queue,) = world.view.state().queues
    assert (queue.depth, queue.bytes, queue.oldest_seconds) == (2, 800, 0.75)


def test_what_is_not_counted_here_is_told_with_its_reason() -> None:
    missing = NotHere(Api.CHAT, Feature.TOOLS, Source.ENGINE, "it differs")
    (counting,) = World(Monitor(), in_pool=True, not_here=[missing]).view.state().counting
    assert (counting.model, counting.mode, counting.reason) == ("m", "local", "it differs")
    assert [exception.model_dump() for exception in counting.not_here] == [
        {"api": "chat", "feature": "tools", "by": "engine", "reason": "it differs"}
    ]


def test_who_drains_is_not_ready_and_the_mode_is_the_one_in_force() -> None:
    world = serving()
    assert world.view.state().mode == "enforce"
    world.settings = Settings.model_validate({"admission": {"mode": Mode.OBSERVE}})
    world.view.draining = True
    state = world.view.state()
    assert (state.mode, state.draining, state.ready) == ("observe", True, False)


def test_an_endpoint_is_drained_and_taken_back_by_its_id_alone() -> None:
    monitor = Monitor()
    view = World(monitor, in_pool=False).view
    view.drain(A)
    view.undrain(A)
    assert monitor.told == ["drain", "undrain"]
    for act in (view.drain, view.undrain):
        with pytest.raises(UnknownEndpointError):
            act("127.0.0.1:9")
    assert monitor.told == ["drain", "undrain"]
