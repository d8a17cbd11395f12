from collections.abc import Collection

import pytest
from structlog.testing import capture_logs

from gateway.admission.events import (
    Capacity,
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
from gateway.endpoints.identity import Identity
from gateway.pools.cores import Cores

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
    assert world.serves(A, identity("m")) is not before
    assert list(world.cores.drivers) == ["m"]


def test_an_endpoint_that_takes_no_traffic_stays_with_its_core(world: World) -> None:
    driver = world.serves(A, identity("m"))
    world.cores.down(A, "down: refused")
    assert driver.events[-1] == EndpointDown(A, "down: refused")
    assert world.told[1:] == [("down", A)]
    assert world.cores.driver_of(A) is driver
    world.cores.down(B, "down: it was never up")
    assert (driver.events[-1], world.told[-1]) == (EndpointDown(A, "down: refused"), ("down", B))


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


def test_a_share_of_each_endpoint_is_given_and_none_while_it_may_not_decide(world: World) -> None:
    whole = Capacity(max_model_len=100, kv_blocks=10, max_num_seqs=3)
    world.cores.up(A, identity("m"), whole)
    driver = world.cores.driver_of(A)
    assert isinstance(driver, Driver)
    driver.events.clear()
    for share in (0.5, 0.01, 0.0, 1.0):
        world.cores.restrict(share)
    assert driver.events == [
        EndpointUp(A, Capacity(max_model_len=100, kv_blocks=5, max_num_seqs=1)),
        EndpointUp(A, Capacity(max_model_len=100, kv_blocks=1, max_num_seqs=1)),
        EndpointUp(A, whole),
        EndpointDown(A, "this gateway may not decide now"),
        EndpointUp(A, whole),
    ]
    assert Capacity(max_model_len=100, kv_blocks=None).part(0.5).kv_blocks is None, "not known"
