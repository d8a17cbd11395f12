import itertools
from pathlib import Path

import pytest

from loadtests.arrivals import closed_loop, mean_output, open_loop, segments
from loadtests.scenario import Flow, Phase, Prefix, Request, Scenario, ScenarioError, Trace

ONE = Request(prompt=(10, 20), output=(5, 9))


def scenario(**fields) -> Scenario:
    return Scenario(**{"description": "x", "phases": (Phase(100.0),), "requests": (ONE,), **fields})


def between(planned, start: float, end: float) -> int:
    return sum(start <= request.at < end for request in planned)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    file = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{second:02}.0000000,{100 + second},{10 + second}" for second in (0, 1, 2, 10, 11, 20)]
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return Trace(str(file))


def test_arrivals_are_the_same_for_the_same_seed_only():
    assert open_loop(scenario(), 10, 1) == open_loop(scenario(), 10, 1)
    assert open_loop(scenario(), 10, 1) != open_loop(scenario(), 10, 2)


def test_arrivals_come_in_order_at_the_rates_of_the_phases_again_and_again():
    phases = (Phase(100.0, load=0.5), Phase(50.0, load=4.0), Phase(50.0, load=0.0))
    planned = open_loop(scenario(phases=phases, seconds=350.0), 20, 1)
    assert [r.at for r in planned] == sorted(r.at for r in planned)
    for start, end, expected in ((0, 100, 1000), (100, 150, 4000), (150, 200, 0), (200, 300, 1000), (300, 350, 4000)):
        assert between(planned, start, end) == pytest.approx(expected, rel=0.1)


def test_the_spike_is_where_the_phases_say():
    timeline = segments(scenario(phases=(Phase(60.0), Phase(30.0, load=5, spike=True), Phase(9.0))), 2)
    assert [(s.start, s.end, s.rate, s.spike) for s in timeline] == [
        (0, 60, 2, False),
        (60, 90, 10, True),
        (90, 99, 2, False),
    ]


def test_constant_arrivals_are_evenly_spaced():
    planned = open_loop(scenario(arrivals="constant"), 4, 1)
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(planned)]
    assert len(planned) == pytest.approx(400, abs=1)
    assert gaps == pytest.approx([0.25] * len(gaps))


def test_flows_get_their_shares_and_send_the_same_without_the_others():
    flows = (Flow("quiet"), Flow("noisy", share=10))
    planned = open_loop(scenario(flows=flows), 22, 1)
    quiet = [request for request in planned if request.flow == "quiet"]
    assert len(planned) - len(quiet) == pytest.approx(10 * len(quiet), rel=0.2)
    alone = open_loop(scenario(flows=(Flow("quiet"),)), 2, 1)
    assert quiet == alone


def test_a_flow_may_send_requests_of_its_own():
    planned = open_loop(scenario(flows=(Flow("a"), Flow("b", requests=(Request(prompt=500, output=1),)))), 10, 1)
    assert {request.prompt for request in planned if request.flow == "b"} == {500}
    assert all(10 <= request.prompt <= 20 for request in planned if request.flow == "a")


def test_lengths_keep_to_their_ranges_and_kinds_to_their_weights():
    kinds = (Request(prompt=(10, 20), output=(5, 9), weight=9), Request(prompt=1000, output=5))
    planned = open_loop(scenario(requests=kinds), 50, 1)
    short = [request for request in planned if request.kind == 0]
    assert {request.prompt for request in short} == set(range(10, 21))
    assert {request.output for request in short} == set(range(5, 10))
    assert len(short) / len(planned) == pytest.approx(0.9, abs=0.02)


def test_max_tokens_is_what_is_generated_and_the_slack_above_it_within_the_context():
    kind = Request(prompt=100, output=50, max_tokens_slack=1000)
    assert open_loop(scenario(), 1, 1)[0].max_tokens == open_loop(scenario(), 1, 1)[0].output
    assert {request.max_tokens for request in open_loop(scenario(requests=(kind,)), 1, 1)} == {1050}
    assert {request.max_tokens for request in open_loop(scenario(requests=(kind,)), 1, 1, 300)} == {200}


def test_a_request_longer_than_the_model_takes_is_an_error_that_says_what_to_do():
    with pytest.raises(ScenarioError, match="--prompt-scale"):
        open_loop(scenario(requests=(Request(prompt=100, output=50),)), 1, 1, context=149)


def test_a_trace_gives_prompt_and_output_of_one_row(trace):
    planned = open_loop(scenario(requests=(Request(trace=trace),)), 5, 1)
    assert {(r.prompt, r.output) for r in planned} == {(100 + s, 10 + s) for s in (0, 1, 2, 10, 11, 20)}


def test_rows_that_the_model_does_not_take_are_left_out(trace):
    planned = open_loop(scenario(requests=(Request(trace=trace),)), 5, 1, context=113)
    assert {r.prompt for r in planned} == {100, 101}
    with pytest.raises(ScenarioError, match="no row"):
        open_loop(scenario(requests=(Request(trace=trace),)), 5, 1, context=50)


def test_the_arrivals_of_a_trace_keep_its_order_and_its_bursts(trace):
    planned = open_loop(scenario(requests=(Request(trace=trace),), arrivals="trace", phases=(Phase(1000.0),)), 3, 1)
    order = [100, 101, 102, 110, 111, 120]
    prompts = [request.prompt for request in planned]
    start = order.index(prompts[0])
    assert prompts[:6] == order[start:] + order[:start]
    assert len(planned) == pytest.approx(3000, rel=0.05)
    of_row = {later.prompt: later.at - earlier.at for earlier, later in itertools.pairwise(planned)}
    assert of_row[110] == pytest.approx(8 * of_row[101])


def test_prefixes_are_shared_within_a_group_and_a_run():
    kind = Request(prompt=5, output=1, prefix=Prefix(64, groups=2))
    planned = open_loop(scenario(requests=(kind,)), 1, 1)
    ids = {(request.group, tuple(request.prompt_ids("run"))) for request in planned}
    assert {len(prompt) for _, prompt in ids} == {69}
    assert len({prompt[:64] for _, prompt in ids}) == 2
    assert len({(group, prompt[:64]) for group, prompt in ids}) == 2
    assert len({prompt for _, prompt in ids}) == len(planned)
    assert planned[0].prompt_ids("run")[:64] != planned[0].prompt_ids("another")[:64]


def test_clients_that_wait_never_run_out_of_requests():
    flows = (Flow("a"), Flow("b", share=3))
    drawn = list(itertools.islice(closed_loop(scenario(flows=flows), 1), 1000))
    assert sum(request.flow == "b" for request in drawn) == pytest.approx(750, rel=0.1)
    assert len({(request.flow, request.number) for request in drawn}) == 1000
    assert mean_output(scenario()) == pytest.approx(7, rel=0.02)
