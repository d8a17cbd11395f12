from dataclasses import replace

import pytest

from gateway.admission.explanation import Candidate, Explanation
from gateway.commands.top.explaining import explanation
from gateway.ops.explained import Explained
from gateway.wire.request import Api

FULL = Candidate(
    "a:1",
    takes=False,
    rule="forecast",
    lacks=10.5,
    unit="blocks",
    usage=0.5,
    forecast_without=0.9,
    forecast_with=1.1,
    cached_tokens=0,
)
DECISION = Explanation(
    verdict="queue",
    rule="order",
    endpoint="a:1",
    would=None,
    prompt_tokens=1700,
    holds_blocks=1,
    predicted_output=300,
    predicted_wait=2.5,
    predicted_prefill=0.1,
    ttft_target=5.0,
    retry_after=None,
    candidates=(FULL, replace(FULL, endpoint="b:2", takes=True, rule="fits", lacks=None, unit=None)),
)


def explained(**decision):
    return Explained(
        model="m",
        api=Api.CHAT,
        flow="app",
        band=2,
        counted="local",
        prompt_tokens=1700,
        max_tokens=500,
        sequences=1,
        decision=replace(DECISION, **decision),
    )


def test_it_has_the_verdict_the_request_its_times_and_every_endpoint():
    assert explanation(explained()).plain.splitlines() == [
        "It would wait, then go to a:1 (rule order).",
        "chat of app, band 2, for m: 1,700 tokens in (local), at most 500 out, 300 expected",
        "in the queue 2.5 s, to its first token then 100 ms, target 5.0 s",
        "✘ a:1: forecast, lacks 10.5 blocks; KV 50 %, peak 90 %, 110 % with it",
        "✔ b:2: fits; KV 50 %, peak 90 %, 110 % with it",
    ]


@pytest.mark.parametrize(
    ("decision", "verdict"),
    [
        ({"verdict": "dispatch", "rule": "fits"}, "It would be sent to a:1 now (rule fits)."),
        (
            {"verdict": "dispatch", "rule": "observe", "would": "queue_full"},
            "It would be sent to a:1 now (rule observe); enforced, it would be queue_full.",
        ),
        ({"endpoint": None}, "It would wait (rule order)."),
        (
            {"verdict": "wait_too_long", "rule": "wait", "endpoint": None, "retry_after": 7.0},
            "It would be refused: wait_too_long (rule wait), to come back in 7.0 s.",
        ),
    ],
)
def test_every_verdict_is_a_sentence(decision, verdict):
    assert explanation(explained(**decision)).plain.splitlines()[0] == verdict
