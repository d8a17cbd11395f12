"""Pictures out of a real admission core, and what a front told."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.events import Arrived, Demand, EndpointUp, Finished, Observed, Progress, RequestId, Verdict
from gateway.app.picture_maker import Pictures
from gateway.config.settings import Settings
from gateway.endpoints.health import State
from gateway.endpoints.totals import Totals
from gateway.ops.pictures.digest import Digest, Ended, OfModel
from tests.unit.app.test_decided import CAPACITY, IDENTITY, A, Monitor, World


class Watched(World):
    """Its endpoint is up, and one sequence at once runs there."""

    def __init__(self, **settings: Any) -> None:
        self.monitor = Monitor(
            state=State.UP, reason="probes are answered", healthy=True, identity=IDENTITY, capacity=CAPACITY,
            scraped_at=99.0,
        )  # fmt: skip
        super().__init__(self.monitor, served=True)
        self._cores = SimpleNamespace(drivers={"m": SimpleNamespace(controller=self.core)}, serves=lambda _: "m")
        self.now = 100.0
        self.happen(EndpointUp(A, CAPACITY), at=90.0)
        known = Settings.model_validate(settings)
        self.pictures = Pictures(self._cores, self._monitors, settings=lambda: known, clock=lambda: self.now)
        self.pictures._epoch = 1_700_000_000.0  # rounded times do not hang on when the test runs

    @property
    def picture(self):
        return self.pictures.picture(0.0)

    def ago(self, at):
        """Seconds before the picture."""
        return round(self.picture.at - at, 1)


@pytest.fixture
def world():
    return Watched()


def arrived(number: int, flow: str = "alice", prompt: int = 320, **fields: Any) -> Arrived:
    return Arrived(RequestId(number), Demand((prompt,), 160), flow=flow, **fields)


def ended(number: int | None, **fields: Any) -> Ended:
    known = {
        "request_id": "r", "model": "m", "flow": "alice", "outcome": "completed", "endpoint": A, "prompt": 320,
        "generated": 40, "took": 3.0, "waited": 1.0, "first": 1.5, "ago": 0.5,
    }  # fmt: skip
    return Ended(number=number, **{**known, **fields})


def test_an_idle_endpoint_is_free(world):
    (endpoint,) = world.picture.endpoints
    assert (endpoint.split.free, endpoint.split.running, endpoint.usage) == (1.0, 0.0, 0.0)
    assert world.ago(endpoint.scraped) == 1.0
    assert world.picture.headline.text.startswith("Serving. KV 0 %")


def test_the_cache_is_split_into_what_it_is_used_for(world):
    prefix = ((160, 1),)
    world.happen(arrived(1, prefix=prefix), arrived(2, prefix=prefix))
    world.happen(Observed(A, sampled_at=99.5, kv_usage=0.5, running=2, waiting=0, generation_tokens=5), at=99.6)
    (endpoint,) = world.picture.endpoints
    split = endpoint.split
    assert split.shared == 0.1, "160 of 1,600 tokens, once"
    assert split.running == pytest.approx(0.22), "the rest of both prompts, and a block each for the first tokens"
    assert split.foreign > 0
    assert split.running + split.shared + split.foreign == pytest.approx(endpoint.usage, abs=1e-3)
    assert sum((split.running, split.shared, split.foreign, split.promised)) == pytest.approx(
        endpoint.forecast, abs=1e-3
    )


def test_requests_wait_run_and_end(world):
    world.happen(arrived(1), arrived(2), arrived(3, flow="bob"), at=98.0)
    world.happen(Progress(((RequestId(1), 40),)), at=99.0)
    by_key = {request.key: request for request in world.picture.requests}
    assert [by_key[key].phase for key in "123"] == ["running", "running", "waiting"]
    running, waiting = by_key["1"], by_key["3"]
    assert (running.generated, running.endpoint, running.waited, running.prompt) == (40, A, 0.0, 320)
    assert running.expected >= 40
    assert running.held == 23
    assert (waiting.endpoint, waiting.waited, waiting.flow) == (None, None, "bob")
    assert world.ago(waiting.came) == 2.0
    world.happen(Finished(RequestId(1), Verdict.DONE, 40))
    world.pictures.take(Digest({"m": OfModel({"completed": 1})}, [ended(1), ended(None, outcome="queue_full")]))
    last, gone = world.picture.requests[-1], world.picture.requests[-2]
    assert {last.key, gone.key} > {"1"}
    done = next(request for request in world.picture.requests if request.key == "1")
    assert (done.phase, done.outcome, done.waited, done.request_id) == ("ended", "completed", 1.0, "r")
    assert world.ago(done.came) == 3.5


def test_the_queue_is_told_by_flow(world):
    for number in range(1, 6):
        world.happen(arrived(number, "alice" if number < 5 else "bob"), at=97.0)
    world.pictures.take(Digest({"m": OfModel({}, {}, {}, {"alice": 300.0, "carol": 100.0})}))
    (model,) = world.picture.models
    alice, bob, carol = model.flows
    assert (alice.flow, alice.waiting, alice.service) == ("alice", 3, 0.75)
    assert (bob.flow, bob.waiting, bob.service) == ("bob", 1, 0.0)
    assert (carol.flow, carol.waiting, carol.service) == ("carol", 0, 0.25)
    assert alice.due == pytest.approx(1 / 3, abs=1e-3)
    assert (model.waiting, world.ago(model.oldest)) == (4, 3.0)


def test_an_endpoint_that_does_nothing_any_more_has_no_rates(world):
    def rates():
        (endpoint,) = world.picture.endpoints
        return endpoint.decode_rate, endpoint.prefill_rate, endpoint.generated_rate

    world.monitor.status = replace(world.monitor.status, totals=Totals(generated=10))
    world.pictures.sample()
    world.now = 102.0
    world.monitor.status = replace(world.monitor.status, totals=Totals(generated=50))
    world.pictures.sample()
    world.happen(arrived(1), at=100.0)
    for count, at in ((1, 100.5), (40, 101.5)):
        world.happen(Progress(((RequestId(1), count),)), at=at)
    assert None not in rates()[1:]
    world.monitor.status = replace(world.monitor.status, state=State.DRAINING, healthy=False)
    assert rates()[2] == 20.0, "what runs there goes on"
    world.happen(Finished(RequestId(1), Verdict.DONE, 40))
    assert rates() == (None, None, None)


def test_history_has_what_was_and_dates_its_signs(world):
    world.pictures.sample()
    world.monitor.status = Monitor(state=State.DOWN, reason="gone", since=101.0, identity=IDENTITY).status
    for world.now in (102.0, 104.0):
        world.pictures.sample()
    world.monitor.status = Monitor(
        state=State.UP, healthy=True, since=104.0, totals=Totals(generated=50), identity=IDENTITY, scraped_at=105.0
    ).status
    world.pictures.take(Digest({"m": OfModel({"upstream_error": 2})}))
    world.now = 106.0
    world.pictures.sample()
    world.now = 107.5
    picture = world.picture
    assert [round(picture.at - point.at, 1) for point in picture.points] == [7.5, 5.5, 3.5, 1.5]
    assert picture.points[-1].outcomes == {"upstream_error": 2}
    assert (picture.headline.key, world.ago(picture.headline.since)) == ("failed", 1.5)
    assert world.pictures.picture(picture.points[-2].at).points == picture.points[-1:]


def test_a_model_that_has_no_pool_yet_is_told_by_its_outcomes():
    world = Watched()
    world.pictures.take(Digest({"": OfModel({"model_not_found": 1})}))
    assert world.picture.models[-1].outcomes == {"model_not_found": 1}
