import json
from dataclasses import replace

import pytest

from gateway.admission.events import Arrived, Capacity, Demand, EndpointUp, Finished, Observed, Verdict
from gateway.admission.outcomes import Outcome
from gateway.admission.placing.request_lifecycle import State
from gateway.admission.snapshot import Load
from gateway.advice.history import ALTERNATIVES, HistoryError, _busy, _pace, recorded, running
from gateway.advice.rules import advise
from gateway.config.sources import load
from gateway.ops.metrics import Metrics
from gateway.ops.pace import Pace, Stretch
from gateway.ops.state import EndpointState, EngineTotals, GatewayState, KvState, QueueState
from gateway.record.served import Served, Watched
from tests.fakes.pages import server
from tests.unit.record.recorded import Tape

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=1))


PACE = Pace(Stretch(600, 200.0, 80.0, 100, 50, 0.4), Stretch(600, 40.0, 81.0, 101, 50))


def endpoint(name, model, **changed):
    known = {
        "url": "http://e", "healthy": True, "state": "up", "reason": "", "since_seconds": 1, "model": model,
        "max_model_len": 4096, "max_num_seqs": 8, "kv": KvState(effective=0.33, blocks=10, block_size=16),
        "sequences": 2, "peak_sequences": 5, "engine": EngineTotals(
            preemptions=3, generated_tokens=100, prefix_queried_tokens=50, prefix_hit_tokens=10),
    }  # fmt: skip
    return EndpointState(id=name, **{**known, **changed})


def test_a_kvgate_that_runs_tells_of_each_of_its_models():
    metrics = Metrics("0.1.0", ["m", "n"])
    metrics.model("m").answered(100, 20)
    metrics.model("m").used(100, 60)
    metrics.model("m").ended(Outcome.COMPLETED)
    metrics.model("n").ended(Outcome.QUEUE_FULL)
    metrics.model("n").refused(7, 10.0)
    for key in (7, 7, 8):
        metrics.model("n").came(key, 20.0)
    state = GatewayState(
        version="0", mode="enforce", draining=False, ready=True,
        endpoints=(
            endpoint("a", "m", pace=PACE), endpoint("b", "n", kv=None, engine=EngineTotals(), max_num_seqs=None)),
        queues=(QueueState(model="m", depth=0), QueueState(model="n", depth=1)),
    )  # fmt: skip
    metrics.sample({"m": Load(0, 2, (("a", 0.33),)), "n": Load(1, 2, ())})
    metrics.sample({"m": Load(4, 2, (("a", 0.33),))})
    pages = {"/metrics": metrics.exposition(state).decode(), "/kvgate/state": state.model_dump_json()}
    with server(pages, key="sesame") as url:
        m, n = running(f"{url}/", "sesame")
    assert (m.model, m.traffic.requests, m.traffic.hit_rate) == ("m", 1, 0.2)
    (a,) = m.endpoints
    assert (a.max_model_len, a.sequence_limit, a.kv_tokens, a.peak_sequences, a.preemptions) == (4096, 8, 160, 5, 3)
    assert (a.usage_p99, a.usage_most, a.pace) == (0.35, 0.35, PACE)
    assert (m.busy, m.around) == (0.5, 0.4)
    assert m.refused(Outcome.COMPLETED) == 1
    (b,) = n.endpoints
    assert (n.traffic.requests, n.traffic.hit_rate, n.busy, n.around) == (0, None, 1.0, None)
    assert (b.kv_tokens, b.usage_most, b.preemptions, b.sequence_limit, b.pace) == (None,) * 5
    assert (n.refused(Outcome.QUEUE_FULL), n.returns, m.returns) == (1, 1, 0)


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({}, "/kvgate/state: expected a kvgate or a vLLM there, it answered 404"),
        ({"/kvgate/state": json.dumps({"hello": 1})}, "expected a kvgate of this version"),
    ],
)
def test_what_is_no_kvgate_is_told(pages, said):
    with server(pages) as url, pytest.raises(HistoryError, match=said):
        running(url, None)


def arrived(number, *prefix, key=0):
    return Arrived(number, Demand((100,), 20), prefix=prefix, key=key)


@pytest.fixture
def events(tmp_path):
    """Four requests to an engine that takes one: one waits 4 s, one is refused, the last goes on; others use it too."""
    tape = Tape(ttft_target=None, queue={"max_requests": 1})
    tape.tell(0, UP, Observed("e", 0, 0.1, 0, 0, 0.0, 0.0)).tell(1, arrived(1, (32, 7)), arrived(2, (32, 7), (64, 8)))
    tape.tell(2, arrived(3)).tell(3, Observed("e", 3, 0.6, 1, 0, 30.0, 1.0))
    tape.tell(5, Finished(1, Verdict.DONE, 20)).tell(8, Finished(2, Verdict.DONE, 20))
    tape.tell(9, arrived(4, (32, 7), (64, 8))).tell(10, Observed("e", 10, 0.2, 1, 0, 80.0, 1.0))
    return tape.write(tmp_path / "events")


def test_an_event_log_tells_the_same_and_what_prompts_share(events):
    (past,) = recorded(events)
    assert (past.model, past.traffic.requests, past.requests) == ("m", 2, 3)
    assert past.outcomes == {"completed": 2, "queue_full": 1}
    (endpoint,) = past.endpoints
    assert (endpoint.kv_tokens, endpoint.sequence_limit, endpoint.peak_sequences) == (1600, 1, 1)
    assert (endpoint.usage_p99, endpoint.usage_most, endpoint.preemptions) == (0.6, 0.6, 1)
    assert past.busy == 0.4
    assert past.around == 0.5
    assert past.shareable == pytest.approx((32 + 64) / 300)


def test_a_request_that_comes_again_and_again_is_one(tmp_path):
    """24 clients of an engine that serves one in five seconds, each of which tries every second until it is served."""
    tape, number = Tape(ttft_target=None, queue={"max_requests": 1}).tell(0, UP), 0
    missing, running = list(range(1, 25)), []
    for second in range(1, 130):
        if running and second % 5 == 0:
            tape.tell(second, Finished(running.pop(0), Verdict.DONE, 20))
        for client in list(missing):
            number += 1
            tape.tell(second, arrived(number, key=client))
            if number in tape.controller._requests:
                running.append(number)
                missing.remove(client)
    (past,) = recorded(tape.write(tmp_path / "events"))
    assert not missing
    assert past.refused(Outcome.QUEUE_FULL) > 1000
    assert (past.lost, past.requests) == (0, 24)


def test_an_engine_that_gets_slower_under_the_same_load_is_found(tmp_path):
    """Twelve clients, each of which asks again once it is served, of an engine whose answers take 1 s, then 5 s."""
    up = EndpointUp("e", Capacity(1000, 1000, max_num_seqs=8))
    tape, number, begun = Tape(ttft_target=None).tell(0, up), 0, dict[int, float]()
    for second in range(300):
        ended = [each for each, at in begun.items() if second - at >= (1 if second < 100 else 5)]
        for each in ended:
            del begun[each]
            tape.tell(second, Finished(each, Verdict.DONE, 20))
        while len(tape.controller._requests) < 12:
            number += 1
            tape.tell(second, arrived(number))
        for each, request in tape.controller._requests.items():
            if request.state is State.IN_FLIGHT:
                begun.setdefault(each, second)
    (past,) = recorded(tape.write(tmp_path / "events"))
    (found,) = [finding for finding in advise(past) if finding.subject == "pace"]
    assert "e completed 7.95 requests a second in the first 2 minutes and 1.61 in the last 2" in found.seen
    assert "with 8 and 8 in flight" in found.seen
    assert found.gain.startswith("5.")


def test_an_endpoint_that_was_away_tells_nothing_of_its_pace():
    long_ago = [Served("m", Demand((1,), 1), (), at, at, at + 1, generated=1, done=True) for at in range(1000)]
    watched = Watched("m", UP.capacity, up_since=0)
    assert _pace(watched, long_ago).kept == pytest.approx(1, rel=0.01)
    assert _pace(replace(watched, up_since=990), long_ago) is None
    assert _pace(replace(watched, up_since=None), long_ago) is None


def test_time_in_which_several_waited_counts_once():
    def waited(since, until):
        return Served("m", Demand((1,), 1), (), since, dispatched_at=until)

    assert _busy([waited(1, 10), waited(2, 3), waited(5, 6), waited(12, 14), waited(13, None)], 20) == (9 + 8) / 20
    assert _busy([], 0) is None


def test_an_event_log_is_tried_with_other_settings(events):
    (past,) = recorded(events)
    ran, *others = past.alternatives
    assert (ran.changes, ran.dispatched, ran.wait_p99) == ((), 3, 4)
    assert [other.changes for other in others] == [each for each in ALTERNATIVES if each != ("admission.policy=both",)]
    assert {other.dispatched for other in others} == {3}


@pytest.mark.parametrize("changes", ALTERNATIVES)
def test_every_alternative_is_a_setting(changes):
    wanted = dict(change.removeprefix("admission.").split("=") for change in changes)
    settings = load({"admission": wanted}, environ={}).admission.model_dump(mode="json")
    assert {name: str(settings[name]) for name in wanted} == wanted


def test_a_file_that_is_no_event_log_is_told(tmp_path):
    with pytest.raises(HistoryError, match="none: cannot be read"):
        recorded(tmp_path / "none")
