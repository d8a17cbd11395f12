import time
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import (
    Arrived,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointId,
    EndpointUp,
    Event,
    Observed,
    RequestId,
    ShutdownStarted,
    Tick,
)
from gateway.admission.policy import Policy
from gateway.endpoints.identity import Identity
from gateway.pools.cores import Cores, Known
from gateway.pools.driver import Driver as RealDriver

A, B, C = EndpointId("a"), EndpointId("b"), EndpointId("c")
CAPACITY = Capacity(max_model_len=100, kv_blocks=10)


class Driver:
    """Keeps the events of a core."""

    def __init__(self, happened: list[object]) -> None:
        self.events: list[Event] = []
        self.closed = False
        self._happened = happened

    def handle(self, event: Event) -> None:
        self.events.append(event)
        self._happened.append(event)

    def close(self) -> None:
        self.closed = True


def identity(*names: str, root: str | None = None, length: int = 100) -> Identity:
    return Identity(names=names, loras=(), root=root, max_model_len=length, version="0.32.0")


class World:
    """The cores of the endpoints a, b and c, and the front that follows them."""

    def __init__(self, **names: str) -> None:
        self.made: list[tuple[str, str | None]] = []
        self.told: list[tuple[object, ...]] = []
        """What the front was told."""
        self.happened: list[object] = []
        """That, and the events of every core, in order."""
        self.cores = Cores(self._make, self)
        for endpoint in (A, B, C):
            self.cores.add(endpoint, names.get(endpoint))

    def _make(self, model: str, root: str | None) -> Driver:
        self.made.append((model, root))
        return Driver(self.happened)

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.happened.append(what)

    # The `Follower`.

    def up(self, endpoint: EndpointId, model: str, identity: Identity) -> None:
        self._tell("up", endpoint, model, identity)

    def down(self, endpoint: EndpointId) -> None:
        self._tell("down", endpoint)

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        self._tell("starts", endpoint, ready_in, failed)

    def gone(self, endpoint: EndpointId) -> None:
        self._tell("gone", endpoint)

    def evacuate(self, endpoint: EndpointId) -> None:
        self._tell("evacuate", endpoint)

    def expire(self, requests: Collection[RequestId]) -> None:
        self._tell("expire", *requests)

    # The endpoints.

    def serves(self, endpoint: EndpointId, who: Identity) -> Driver:
        self.cores.up(endpoint, who, CAPACITY)
        driver = self.cores.driver_of(endpoint)
        assert isinstance(driver, Driver)
        return driver


@pytest.fixture
def world() -> World:
    return World()


def test_an_endpoint_joins_the_core_of_its_model(world: World) -> None:
    assert (world.cores.serves(A), world.cores.driver_of(A)) == (None, None), "it was never reached"
    first = world.serves(A, identity("m", "alias", root="org/m"))
    second = world.serves(B, identity("m", root="elsewhere"))
    other = world.serves(C, identity("n"))
    assert first is second
    assert world.cores.drivers == {"m": first, "n": other}
    assert world.made == [("m", "org/m"), ("n", None)]
    assert (world.cores.root("m"), world.cores.root("n")) == ("org/m", None)
    assert [world.cores.serves(endpoint) for endpoint in (A, B, C)] == ["m", "m", "n"]
    assert first.events == [EndpointUp(A, CAPACITY), EndpointUp(B, CAPACITY)]
    assert [(endpoint, model) for _, endpoint, model, _ in world.told] == [(A, "m"), (B, "m"), (C, "n")]


def test_a_configured_name_goes_before_the_endpoints_own() -> None:
    world = World(a="mine")
    world.serves(A, identity("m"))
    assert (world.cores.serves(A), list(world.cores.drivers)) == ("mine", ["mine"])
    assert world.told == [("up", A, "mine", identity("m"))]


def test_a_front_knows_an_endpoint_before_a_request_may_be_sent_there(world: World) -> None:
    world.serves(A, identity("m"))
    assert world.happened == [("up", A, "m", identity("m")), EndpointUp(A, CAPACITY)]


def test_each_report_of_one_that_is_up_reaches_its_core_and_the_front(world: World) -> None:
    world.serves(A, identity("m"))
    driver = world.serves(A, identity("m", length=50))
    assert driver.events == [EndpointUp(A, CAPACITY)] * 2
    assert world.told == [("up", A, "m", identity("m")), ("up", A, "m", identity("m", length=50))]


def test_an_endpoint_that_serves_another_model_changes_its_core(world: World) -> None:
    before = world.serves(A, identity("m"))
    world.serves(B, identity("m"))
    with capture_logs() as lines:
        after = world.serves(A, identity("n"))
    assert [(line["event"], line["endpoint"], line["model"]) for line in lines] == [
        ("endpoint serves another model now", A, "n")
    ]
    assert EndpointGone(A) in before.events
    assert after.events == [EndpointUp(A, CAPACITY)]
    assert world.cores.drivers == {"m": before, "n": after}
    assert (world.cores.serves(A), world.cores.serves(B)) == ("n", "m")


def test_a_model_that_nobody_serves_any_more_is_gone(world: World) -> None:
    before = world.serves(A, identity("m"))
    world.serves(A, identity("n"))
    assert list(world.cores.drivers) == ["n"]
    assert before.events[-1] == EndpointGone(A)
    assert world.cores.root("n") is None


def test_what_waits_for_a_model_that_comes_back_is_in_its_core_again(world: World) -> None:
    before = world.serves(A, identity("m", root="org/m"))
    world.serves(A, identity("n"))
    assert world.serves(A, identity("m", root="of/others")) is not before, "its lengths and rates are of other weights"
    world.serves(A, identity("n"))
    assert world.serves(A, identity("m", root="org/m")) is before
    assert before.events[-1] == EndpointUp(A, CAPACITY)
    assert world.cores.drivers == {"m": before}


def test_a_core_in_which_nothing_waits_is_not_kept_for_a_model_that_may_come_back(world: World) -> None:
    left = weakref.ref(world.serves(A, identity("m")))
    world.serves(A, identity("n"))
    assert left() is None
    world.serves(A, identity("m"))
    assert world.made == [("m", None), ("n", None), ("m", None)]


def test_an_endpoint_that_takes_no_traffic_stays_with_its_core(world: World) -> None:
    driver = world.serves(A, identity("m"))
    world.cores.down(A, "down: refused")
    assert driver.events[-1] == EndpointDown(A, "down: refused")
    assert world.told[1:] == [("down", A)]
    assert world.cores.driver_of(A) is driver
    world.cores.down(B, "down: it was never up")
    assert (driver.events[-1], world.told[-1]) == (EndpointDown(A, "down: refused"), ("down", B))


def test_one_with_another_name_serves_nothing_before_it_is_up_under_that(world: World) -> None:
    driver = world.serves(A, identity("m"))
    world.cores.down(A, "stopped")
    world.cores.add(A, "m")
    assert world.cores.driver_of(A) is driver
    world.cores.add(A, "n")
    assert (driver.events[-1], world.told[-1]) == (EndpointGone(A), ("gone", A))
    assert (world.cores.serves(A), world.cores.name(A)) == (None, "n")
    assert world.serves(A, identity("n")) is not driver


def test_one_that_takes_traffic_serves_under_its_last_name_until_it_is_down(world: World) -> None:
    driver = world.serves(A, identity("m"))
    world.cores.add(A, "n")
    assert world.cores.driver_of(A) is driver
    world.cores.down(A, "stopped")
    assert world.told[-2:] == [("down", A), ("gone", A)]
    assert world.cores.serves(A) is None


def test_one_of_another_kind_differs_while_it_is_known_for_the_same_model() -> None:
    world = World()
    llama = replace(identity("m"), kind="llama-server")
    world.cores.up(B, identity("m"), CAPACITY)
    assert world.cores.of_another_kind(A, llama) == (B, identity("m"))
    world.cores.down(B, "killed")
    assert (world.cores.of_another_kind(A, llama), world.cores.differ(A, llama, B)) == (None, True)
    assert not world.cores.differ(A, identity("m"), B)
    world.cores.add(A, "n")
    assert not world.cores.differ(A, llama, B), "it is for another model by now"
    world.cores.add(A, None)
    world.cores.up(B, llama, CAPACITY)
    assert not world.cores.differ(A, llama, B), "the other is of its kind by now"
    world.cores.remove(B)
    assert not world.cores.differ(A, llama, B)


def test_what_is_to_leave_an_endpoint_or_to_end_is_told_to_the_front(world: World) -> None:
    world.cores.evacuate(A)
    world.cores.expire([RequestId(1), RequestId(2)])
    assert world.told == [("evacuate", A), ("expire", 1, 2)]


def test_a_sample_goes_to_the_core_of_its_model(world: World) -> None:
    known, other = world.serves(A, identity("m")), world.serves(C, identity("n"))
    sample = Observed(A, 1.0, 0.5, 1, 0, 10.0)
    world.cores.observed(sample)
    world.cores.observed(Observed(B, 1.0, 0.5, 1, 0, 10.0))
    assert known.events[-1] == sample
    assert [event for event in (*known.events, *other.events) if isinstance(event, Observed)] == [sample]


def test_one_that_is_removed_leaves_its_core_and_then_the_front(world: World) -> None:
    driver, stays = world.serves(A, identity("m")), world.serves(C, identity("n"))
    del world.happened[:]
    world.cores.remove(A)
    world.cores.remove(B)
    assert world.happened == [EndpointGone(A), ("gone", A), ("gone", B)]
    assert driver.events[-1] == EndpointGone(A)
    assert world.cores.drivers == {"n": stays}
    assert world.cores.serves(A) is None


def test_a_model_stays_while_another_endpoint_serves_it(world: World) -> None:
    driver = world.serves(A, identity("m"))
    world.serves(B, identity("m"))
    world.cores.remove(A)
    assert world.cores.drivers == {"m": driver}
    assert world.cores.driver_of(B) is driver


def test_what_is_for_all_reaches_the_core_of_a_model_that_nobody_serves_any_more(world: World) -> None:
    left = world.serves(A, identity("m"))
    stays = world.serves(A, identity("n"))
    world.cores.tell(Tick())
    assert left.events[-1] == stays.events[-1] == Tick()
    world.cores.close()
    assert left.closed
    assert stays.closed


def test_a_shutdown_reaches_every_core_whenever_it_was_made(world: World) -> None:
    left = world.serves(A, identity("m"))
    moved = world.serves(A, identity("n"))
    world.cores.drain()
    late = world.serves(B, identity("o"))
    for driver in (left, moved, late):
        assert ShutdownStarted() in driver.events
    assert late.events == [ShutdownStarted(), EndpointUp(B, CAPACITY)], "before anything can be sent there"


class Restricted:
    """The cores of the endpoints a and b, as those of a tier; both serve one model. Its core is a real one."""

    def __init__(self, before: Callable[[], None] | None = None) -> None:
        self.said: list[object] = []
        nothing = dict.fromkeys(("up", "down", "gone", "evacuate", "expire"), lambda *_: None)
        follower: Any = SimpleNamespace(**nothing)
        self.cores = Cores(self._make, follower, before=before)
        self.made = 0
        for endpoint in (A, B):
            self.cores.add(endpoint, None)

    def _make(self, model: str, root: str | None) -> RealDriver:
        del model, root
        asker: Any = SimpleNamespace(decided=self._decided, want=lambda *_, **__: None, renew=lambda: None)
        policy = Policy(ttl=60.0, no_endpoint_ttl=60.0, ttft_target=None)
        return RealDriver(AdmissionController(policy), time.monotonic, asker)

    def _decided(self, command: object) -> bool:
        self.said.append(command)
        return True

    @property
    def sent(self) -> list[EndpointId]:
        """Where requests went, since the last look."""
        said, self.said = self.said, []
        return [command.endpoint for command in said if isinstance(command, Dispatch)]

    def up(self, endpoint: EndpointId = A, *, blocks: int | None = 100, sequences: int | None = 4) -> None:
        self.cores.up(endpoint, identity("m"), Capacity(max_model_len=1000, kv_blocks=blocks, max_num_seqs=sequences))

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            self.made += 1
            self.cores.drivers["m"].handle(Arrived(RequestId(self.made), Demand((10,), 10)))

    def capacity(self, endpoint: EndpointId = A) -> Capacity:
        found = self.cores.drivers["m"].controller._endpoints.get(endpoint)
        assert found is not None
        return found.capacity


@pytest.fixture
async def restricted() -> Any:
    restricted = Restricted()
    yield restricted
    restricted.cores.close()


async def test_with_no_share_nothing_is_dispatched(restricted: Restricted) -> None:
    restricted.up()
    restricted.cores.restrict(0.0)
    restricted.arrive()
    restricted.up(B)
    restricted.up(A)
    restricted.cores.tell(Tick())
    assert restricted.sent == [], "neither at those that were up, nor at those that come up meanwhile"
    restricted.cores.restrict(1.0)
    assert len(restricted.sent) == 1


async def test_half_a_share_is_half_of_the_blocks_and_sequences(restricted: Restricted) -> None:
    restricted.cores.restrict(0.5)
    restricted.up()
    assert (restricted.capacity().kv_blocks, restricted.capacity().max_num_seqs) == (50, 2)
    restricted.arrive(4)
    assert len(restricted.sent) == 2
    restricted.cores.restrict(0.0)
    assert restricted.sent == [], "who may decide nothing fills nothing up first"
    restricted.cores.restrict(1.0)
    assert len(restricted.sent) == 2
    assert restricted.capacity() == Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=4)


async def test_what_an_engine_has_shown_to_hold_for_others_counts_under_another_share(restricted: Restricted) -> None:
    restricted.cores.restrict(0.5)
    restricted.up()
    restricted.arrive()
    assert len(restricted.sent) == 1
    restricted.cores.observed(Observed(A, time.monotonic(), 0.95, 9, 0, 100.0))
    restricted.arrive(3)
    restricted.cores.restrict(1.0)
    assert restricted.sent == [], "the engine is full"


async def test_of_a_small_endpoint_a_share_is_something_and_of_an_unknown_limit_all(restricted: Restricted) -> None:
    restricted.cores.restrict(0.01)
    restricted.up(A, blocks=3, sequences=1)
    restricted.up(B, blocks=None, sequences=None)
    assert (restricted.capacity(A).kv_blocks, restricted.capacity(A).max_num_seqs) == (1, 1)
    assert (restricted.capacity(B).kv_blocks, restricted.capacity(B).max_num_seqs) == (None, None)


async def test_another_share_brings_back_nobody_who_is_down(restricted: Restricted) -> None:
    restricted.up()
    restricted.cores.down(A, "it does not answer")
    restricted.arrive()
    for share in (0.0, 0.5, 1.0):
        restricted.cores.restrict(share)
    assert restricted.sent == []


async def test_what_is_in_flight_can_be_declared_while_nothing_may_be_dispatched(restricted: Restricted) -> None:
    restricted.cores.restrict(0.0)
    restricted.up(sequences=1)
    driver = restricted.cores.drivers["m"]
    driver.handle(Declared(Arrived(RequestId(99), Demand((10,), 10)), A, 1))
    restricted.arrive()
    restricted.cores.restrict(1.0)
    assert restricted.sent == [], "its place is taken"


async def test_an_endpoint_of_an_earlier_owner_gets_nothing_before_it_was_probed(restricted: Restricted) -> None:
    restricted.up()
    restricted.cores.down(A, "it does not answer")
    restricted.arrive()
    restricted.cores.recall(B, Known("m", identity("m"), CAPACITY))
    assert restricted.sent == []
    restricted.up(B)
    assert restricted.sent == [B]


async def test_who_may_decide_no_more_when_an_endpoint_comes_up_dispatches_nothing_there() -> None:
    lapsed: Restricted = Restricted(before=lambda: lapsed.cores.restrict(0.0))
    lapsed.up()
    lapsed.arrive()
    assert lapsed.sent == []
    lapsed.cores.close()


@pytest.mark.parametrize("report", ["down", "evacuate", "expire"])
def test_the_time_is_looked_at_before_a_front_hears_what_a_monitor_reports(report: str) -> None:
    order: list[str] = []
    said = dict.fromkeys(("up", "down", "evacuate", "expire"), lambda *_: order.append("said"))
    follower: Any = SimpleNamespace(**said)
    cores = Cores(lambda *_: None, follower, before=lambda: order.append("looked"))
    cores.add(A, None)
    {
        "down": lambda: cores.down(A, "down"),
        "evacuate": lambda: cores.evacuate(A),
        "expire": lambda: cores.expire([RequestId(1)]),
    }[report]()
    assert order == ["looked", "said"]
