from dataclasses import replace

import pytest

from engine.plan.traffic import Distribution, Range, Traffic
from gateway.admission.outcomes import Outcome
from gateway.advice.rules import ENOUGH, RULES, Alternative, EndpointPast, Past, advise
from gateway.ops.pace import Pace, Stretch


def spread(p50, p99, most):
    return Distribution(Range(p50, p50), Range(p99, p99), Range(most, most))


ENDPOINT = EndpointPast(
    "e:1",
    max_model_len=4096,
    sequence_limit=64,
    kv_tokens=40_000,
    peak_sequences=40,
    usage_p99=0.7,
    usage_most=0.8,
    preemptions=0,
)
GOOD = Past(
    "m",
    Traffic(
        "here",
        1000,
        span=3600,
        prompt_tokens=spread(500, 1500, 2000),
        output_tokens=spread(100, 500, 800),
        total_tokens=spread(600, 1900, 2500),
        hit_rate=0.5,
    ),
    endpoints=(ENDPOINT,),
    outcomes={"completed": 1000},
    busy=0.01,
    around=0.0,
    shareable=0.6,
)


def past(*, endpoint=None, traffic=None, **changed):
    return replace(
        GOOD,
        endpoints=(replace(ENDPOINT, **(endpoint or {})),),
        traffic=replace(GOOD.traffic, **(traffic or {})),
        **changed,
    )


def changes(of):
    return {finding.subject: finding for finding in advise(of) if finding.change is not None}


def only(of, subject):
    found = changes(of)
    assert set(found) == {subject}
    return found[subject]


REFUSED = {"completed": 1000, Outcome.WAIT_TOO_LONG: 100, Outcome.QUEUE_FULL: 100}
RAN = Alternative((), 1000, 4.0)
FIRST = Stretch(600, 200.0, 80.0, 100, 50, usage=0.4)
DECAYS = Pace(FIRST, replace(FIRST, rate=40.0, in_flight=81.0, usage=0.45))
OTHER = ("admission.kv_high=0.95", "admission.kv_low=0.85")

CASES = [
    # what happened, the one thing that is to be changed, what its change names, what its gain names
    (past(traffic={"total_tokens": spread(100, 300, 400)}, endpoint={"usage_most": 0.8}),
     "context length", "--max-model-len 512", "from 4,096 to 512 tokens; its 40,000 tokens are 78 requests"),
    (past(outcomes={"completed": 1000, Outcome.CONTEXT_LENGTH_EXCEEDED: 250}),
     "context length", "raise --max-model-len", "20.0% of requests"),
    (past(endpoint={"peak_sequences": 3}), "sequences", "--max-num-seqs 8", "0.03 GiB less"),
    (past(endpoint={"peak_sequences": 32, "sequence_limit": 32}, busy=0.3),
     "sequences", "--max-num-seqs 56", "about 56 requests of the median length (600 tokens)"),
    (past(endpoint={"preemptions": 50}), "preemptions", "admission.policy: both", "each of the 50"),
    (past(endpoint={"preemptions": 50}, around=0.4), "preemptions", "send what goes around kvgate through it", "50"),
    (past(endpoint={"usage_most": 0.2, "usage_p99": 0.1}),
     "KV cache", "for 12,288 tokens", "69% of the KV cache's memory is free"),
    (past(endpoint={"usage_most": 0.95, "usage_p99": 0.9}, busy=0.3),
     "KV cache", "--kv-cache-dtype fp8", "132 requests of the median length instead of 66"),
    (past(traffic={"hit_rate": 0.1}), "prefix cache", "more KV cache", "up to 50% of all prompt tokens"),
    (past(endpoint={"pace": DECAYS}), "pace", "nvidia-smi -q -d PERFORMANCE", "5.0 times the requests"),
    (past(endpoint={"pace": Pace(FIRST, replace(DECAYS.last, usage=0.9))}),
     "pace", "what else fills its KV cache", "5.0 times the requests"),
    (past(outcomes=REFUSED, busy=0.5), "capacity", "up to 2 engines instead of 1", "16.7% that are refused"),
    (past(outcomes={**REFUSED, Outcome.QUEUE_FULL: 100_000}, returns=100_000 - 20, busy=1.0),
     "capacity", "up to 2 engines instead of 1", "and at once those who have to come back"),
    (past(outcomes={"completed": 900, Outcome.NO_ENDPOINT: 100}),
     "capacity", "kvgate doctor", "9.1% of requests"),
    (past(alternatives=(RAN, Alternative(("admission.policy=forecast",), 1000, 3.9), Alternative(OTHER, 1100, 5.0))),
     "admission settings", "admission.kv_high=0.95, admission.kv_low=0.85", "dispatched 1,100"),
    (past(alternatives=(RAN, Alternative(OTHER, 1000, 2.0))), "admission settings", "kv_high=0.95", "2.00 s"),
]  # fmt: skip


@pytest.mark.parametrize(("happened", "subject", "change", "gain"), CASES, ids=[f"{c[1]}: {c[2]}" for c in CASES])
def test_what_is_wrong_is_named_with_what_to_change_and_what_that_buys(happened, subject, change, gain):
    finding = only(happened, subject)
    assert change in finding.change
    assert gain in finding.gain


FINE = [
    GOOD,
    past(endpoint={"sequence_limit": None, "peak_sequences": 3}),
    past(endpoint={"preemptions": 9}),
    past(endpoint={"pace": Pace(FIRST, replace(FIRST, rate=101.0))}),
    past(endpoint={"usage_most": 0.95, "usage_p99": 0.9}),
    past(endpoint={"peak_sequences": 64}),
    past(endpoint={"peak_sequences": 64, "usage_p99": 0.84}, busy=0.3),
    past(traffic={"hit_rate": 0.1}, shareable=None),
    past(traffic={"hit_rate": 0.1}, shareable=0.15),
    past(outcomes={"completed": 1000, Outcome.QUEUE_TIMEOUT: 5, Outcome.CONTEXT_LENGTH_EXCEEDED: 5}),
    past(alternatives=(RAN, Alternative(OTHER, 1001, 3.9), Alternative(OTHER, 900, 0.1))),
    past(alternatives=(Alternative((), 1000, 0.1), Alternative(OTHER, 1000, 0.01))),
    past(traffic={"total_tokens": None, "prompt_tokens": None, "hit_rate": None}, endpoint={"kv_tokens": None}),
]


@pytest.mark.parametrize("happened", FINE, ids=range(len(FINE)))
def test_nothing_to_change_is_an_answer(happened):
    assert changes(happened) == {}
    assert advise(happened)


def test_every_rule_has_a_case_in_which_it_asks_for_a_change():
    asked = {case[1] for case in CASES}
    subjects = {finding.subject for rule in RULES for case in CASES if (finding := rule(case[0])) is not None}
    assert subjects == asked
    assert len(subjects) == len(RULES)


def test_settings_that_would_admit_more_are_not_advised_to_who_sees_preemptions():
    asked = changes(past(endpoint={"preemptions": 50}, alternatives=(RAN, Alternative(OTHER, 1100, 1.0))))
    assert set(asked) == {"preemptions"}


def test_an_engine_that_holds_a_whole_context_keeps_the_memory_for_it():
    roomy = past(endpoint={"usage_most": 0.1, "usage_p99": 0.1, "max_model_len": 32_768},
                 traffic={"total_tokens": spread(600, 20_000, 30_000)})  # fmt: skip
    assert changes(roomy) == {}
    short = past(endpoint={"usage_most": 0.1, "usage_p99": 0.1, "max_model_len": 32_768})
    assert "for 6,144 tokens (with --max-model-len 4096)" in changes(short)["KV cache"].change


def test_what_is_not_known_is_passed_over():
    unknown = Past("m", Traffic("here", 1000))
    assert advise(unknown) == tuple(
        finding for finding in advise(unknown) if finding.subject == "capacity" and finding.change is None
    )


@pytest.mark.parametrize(("requests", "enough"), [(0, False), (ENOUGH - 1, False), (ENOUGH, True)])
def test_too_little_history_is_an_answer(requests, enough):
    assert (advise(past(traffic={"requests": requests})) is not None) is enough


def test_a_pace_that_fell_is_told_in_figures():
    assert only(past(endpoint={"pace": DECAYS}), "pace").seen == (
        "e:1 completed 200 requests a second in the first 10 minutes and 40 in the last 10, with 80 and 81 in flight, "
        "prompts and answers alike (on average 100 and 50 tokens); its KV cache was 40% full, then 45%"
    )
