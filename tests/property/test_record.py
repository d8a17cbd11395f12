"""Whatever a core is told, its record replays to the same decisions."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.events import (
    Arrived,
    Back,
    Behind,
    Cancelled,
    Capacity,
    Declared,
    Demand,
    EndpointDown,
    EndpointGone,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Promised,
    Returned,
    ShutdownStarted,
    Tick,
    Verdict,
    Warmth,
)
from gateway.admission.outcomes import Outcome
from gateway.record.replay import verify
from gateway.record.whatif import compare
from tests.unit.record.recorded import Tape

WARMTH = Warmth(
    (50.0, 2.0), ((0, "a", 7.5),), (Promised(3, 0, "a", -3, Outcome.QUEUE_FULL, 1.0, 9.0, 30.0, (2.0, 1.0)),), 0.5
)
IDS = st.integers(1, 30)
ENDPOINTS = st.sampled_from(["a", "b"])
SHARES = st.none() | st.floats(0, 1.2)
COUNTS = st.none() | st.integers(0, 5)
DEMANDS = st.builds(
    Demand, st.lists(st.integers(1, 300), min_size=1, max_size=2).map(tuple), st.integers(1, 200), st.integers(1, 2)
)
CAPACITIES = st.builds(Capacity, st.integers(100, 600), st.none() | st.integers(5, 100), max_num_seqs=st.none() | IDS)
ARRIVALS = st.builds(
    Arrived,
    IDS,
    DEMANDS,
    band=st.integers(0, 2),
    flow=st.sampled_from(["", "heavy", "light", "held"]),
    body_bytes=st.integers(0, 500),
    streamed=st.booleans(),
    tools=st.booleans(),
    ttft_target=st.none() | st.floats(0.001, 10),
    prefix=st.sampled_from([(), ((64, 1),), ((64, 1), (128, 2**64 - 1)), ((64, 5),)]),
    key=st.sampled_from([0, 1, 2, 2**64 - 1]),
    waited=st.sampled_from([0.0, 0.0, 0.7, 4.5]),
    failures=st.integers(0, 1),
    avoid=st.none() | ENDPOINTS,
)
DECLARED = st.builds(Declared, ARRIVALS, ENDPOINTS, st.integers(0, 300), st.booleans())
EVENTS = st.one_of(
    ARRIVALS,
    DECLARED,
    st.builds(Cancelled, IDS),
    st.builds(Progress, st.lists(st.tuples(IDS, st.integers(0, 300)), max_size=4).map(tuple)),
    st.builds(Behind, IDS),
    st.builds(Finished, IDS, st.sampled_from(Verdict), st.none() | st.integers(0, 300)),
    st.builds(Returned, IDS, st.sampled_from(Back)),
    st.just(WARMTH),
    st.builds(EndpointUp, ENDPOINTS, CAPACITIES),
    st.builds(EndpointDown, ENDPOINTS, st.just("down")),
    st.builds(EndpointGone, ENDPOINTS),
    st.builds(Observed, ENDPOINTS, st.just(0.0), SHARES, COUNTS, COUNTS, st.none() | st.floats(0, 1e6)),
    st.just(ShutdownStarted()),
    *[st.just(Tick())] * 3,
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["enforce", "observe"]),
        "policy": st.sampled_from(["hysteresis", "forecast", "both"]),
        "kv_high": st.floats(0.81, 1),
        "kv_low": st.floats(0.1, 0.79),
        "ttft_target": st.none() | st.floats(0.1, 10),
        "max_passes": st.integers(0, 3),
        "bands": st.dictionaries(
            st.integers(0, 2), st.fixed_dictionaries({"reserved": st.floats(0, 0.3), "ttft_target": st.just(2.0)})
        ),
        "queue": st.fixed_dictionaries({"ttl": st.floats(1, 9), "max_requests": st.integers(0, 9)}),
    },
)
CHANGES = st.tuples(st.dictionaries(st.sampled_from(["heavy", "light"]), st.floats(0.5, 4)), SETTINGS)
STORIES = st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3, 2.0]), st.one_of(*[EVENTS] * 9, CHANGES)), max_size=80)
UP = EndpointUp("a", Capacity(600, 60, 16))


def told(story, file, *before):
    """A record of these events, after those of the time at which its core began."""
    tape, now = Tape(queue={"max_requests": 6, "ttl": 5, "no_endpoint_ttl": 4}), 10.0
    tape.tell(now, UP, *before)
    for step, event in story:
        now += step
        if isinstance(event, tuple):
            weights, settings = event
            tape.change(now, weights, **settings)
            continue
        sampled = isinstance(event, Observed)
        tape.tell(now, replace(event, sampled_at=now - 0.01) if sampled else event)
    return tape.write(file)


@settings(max_examples=150)
@given(STORIES, st.lists(DECLARED, max_size=6))
def test_a_record_replays_to_what_was_decided(story, declared):
    """It may begin with what an earlier core had in flight."""
    with TemporaryDirectory() as folder:
        file = told(story, Path(folder) / "events.jsonl", *declared)
        replayed = verify(file)
        assert replayed.differences == []
        assert replayed.events == len(story) + len(declared) + 1
        unchanged = compare(file, {})
        assert unchanged.differences == []
        assert unchanged.recorded == unchanged.changed


@settings(max_examples=100)
@given(STORIES, st.lists(DECLARED, max_size=6))
def test_any_record_can_be_run_with_other_settings(story, declared):
    with TemporaryDirectory() as folder:
        file = told(story, Path(folder) / "events.jsonl", *declared)
        changed = compare(file, {"kv_high": 0.5, "kv_low": 0.3, "queue": {"max_requests": 2}, "policy": "hysteresis"})
        assert changed.recorded.keys() == changed.changed.keys()
        before = sum(count for _, count, _ in changed.outcomes())
        assert before == sum(count for *_, count in changed.outcomes()) == len(changed.recorded)
