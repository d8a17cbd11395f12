"""The state of endpoints and queues out of a real admission core and what the monitors last reported."""

from types import SimpleNamespace
from typing import Any

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Capacity, Demand, EndpointId, EndpointUp, Event, Observed, RequestId
from gateway.admission.policy import Policy
from gateway.app.decided import decided
from gateway.endpoints.health import State
from gateway.endpoints.identity import Identity
from gateway.endpoints.listener import EndpointStatus
from gateway.endpoints.totals import Totals
from gateway.ops.state import Decided, EndpointState, EngineTotals

A = EndpointId("127.0.0.1:8001")
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, block_size=16, max_num_seqs=2)
IDENTITY = Identity(names=("m", "alias"), loras=("lora",), root=None, max_model_len=1000, version="0.32.0")


class Monitor:
    """Has a status."""

    pace = None

    def __init__(self, *, passing: int = 0, **known: Any) -> None:
        self.passing = passing
        fields: dict[str, Any] = {
            "id": A, "url": f"http://{A}/", "state": State.STARTING, "reason": "nobody listens there", "since": 90.0,
            "healthy": False, "was_healthy": False, "identity": None, "capacity": None, "in_flight": 0,
            "missing_metrics": (), "scraped_at": None, "totals": Totals(),
        }  # fmt: skip
        self.status = EndpointStatus(**{**fields, **known})


class World:
    """The core of one endpoint, at second 100."""

    def __init__(self, monitor: Monitor, *, served: bool) -> None:
        self.core = AdmissionController(Policy())
        self._monitors: Any = {A: monitor}
        drivers = {"m": SimpleNamespace(controller=self.core)} if served else {}
        self._cores = SimpleNamespace(drivers=drivers, serves=lambda _: "m" if served else None)

    def happen(self, *events: Event, at: float = 99.0) -> None:
        for event in events:
            self.core.handle(event, at)

    @property
    def state(self) -> Decided:
        return decided(self._cores, self._monitors, 100.0)

    @property
    def endpoint(self) -> EndpointState:
        (endpoint,) = self.state.endpoints
        return endpoint


def arrived(number: int, size: int = 0) -> Arrived:
    return Arrived(RequestId(number), Demand((100,), 50), body_bytes=size)


def serving(**known: Any) -> World:
    monitor = Monitor(state=State.UP, healthy=True, was_healthy=True, identity=IDENTITY, capacity=CAPACITY, **known)
    world = World(monitor, served=True)
    world.happen(EndpointUp(A, CAPACITY), at=90.0)
    return world


def test_an_endpoint_that_was_never_reached_shows_why_and_nothing_it_cannot_know() -> None:
    world = World(Monitor(), served=False)
    assert world.state.queues == ()
    endpoint = world.endpoint
    assert (endpoint.healthy, endpoint.state, endpoint.reason) == (False, "starting", "nobody listens there")
    assert endpoint.since_seconds == 10.0
    unknown = ("gate", "kv", "max_num_seqs", "max_model_len", "version", "scrape_age_seconds", "model")
    assert {getattr(endpoint, name) for name in unknown} == {None}
    assert (endpoint.models, endpoint.in_flight, endpoint.engine) == ((), 0, EngineTotals())


def test_an_endpoint_is_shown_by_its_address_as_requests_reach_it() -> None:
    assert (serving().endpoint.id, serving().endpoint.url) == (A, f"http://{A}")
    assert serving(url=f"http://{A}/below").endpoint.url == f"http://{A}/below"


def test_one_that_serves_shows_what_it_is_and_what_the_account_holds() -> None:
    world = serving(scraped_at=97.5, missing_metrics=("vllm:x",), totals=Totals(1, 20, 30, 20, 5))
    world.happen(arrived(1), Observed(A, 99.0, 0.25, 1, 0, 0.0))
    endpoint = world.endpoint
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


def test_answers_that_are_only_passed_on_count_as_on_it() -> None:
    assert serving(passing=2).endpoint.in_flight == 2


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
    (queue,) = world.state.queues
    assert (queue.model, queue.depth, queue.bytes, queue.oldest_seconds) == ("m", 0, 0, None)
    world.happen(arrived(1), arrived(2))
    world.happen(arrived(3, size=500), at=99.25)
    world.happen(arrived(4, size=300), at=99.5)
    (queue,) = world.state.queues
    assert (queue.depth, queue.bytes, queue.oldest_seconds) == (2, 800, 0.75)
