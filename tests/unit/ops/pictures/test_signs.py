import pytest

from gateway.ops.pictures.picture import Quantiles
from gateway.ops.pictures.signs import Seen, headline, signs
from tests.unit.ops.pictures.pictures import endpoint, model

DOWN = {"healthy": False, "state": "down", "reason": "nobody listens there", "since": 950.0}


def seen(*endpoints, preempted=None, **of_model):
    return Seen(1000.0, endpoints, (model(**of_model),), preempted or {}, 0.9, 0.8)


def told(world):
    found = tuple(signs(world))
    return headline(world, found)


def test_all_is_well():
    top = told(seen(endpoint(usage=0.71), endpoint("b:1", usage=0.2)))
    assert (top.level, top.text) == ("good", "Serving. KV 71 %, nothing waits, 0 refused in 5 min.")


def test_at_its_limit_it_serves_all_the_same():
    top = told(seen(endpoint(usage=0.93, gate_open=False, closed_by=("gate",)), waiting=1200))
    assert (top.level, top.text) == ("busy", "Serving at its limit. KV 93 %, 1,200 waiting, 0 refused in 5 min.")
    assert "80 %" in top.do


def test_a_limit_of_sequences_is_not_said_to_end_with_the_fill_of_the_cache():
    top = told(seen(endpoint(usage=0.12, gate_open=False, closed_by=("sequences",)), waiting=3))
    assert top.do == "It opens by itself as its requests end."


@pytest.mark.parametrize(
    ("world", "level", "words"),
    [
        (seen(), "bad", "no endpoint is configured"),
        (seen(endpoint(**DOWN)), "bad", "Not serving. a:1 is down."),
        (seen(endpoint(**DOWN), endpoint("b:1", **DOWN)), "bad", "None of 2 endpoints is healthy: a:1 is down."),
        (seen(endpoint(**DOWN), endpoint("b:1")), "warn", "a:1 is down."),
        (seen(endpoint(**DOWN, cause="It was killed.")), "bad", "Not serving. a:1 is down. It was killed."),
        (seen(endpoint(**DOWN, cause="It was killed."), endpoint("b:1")), "warn", "a:1 is down. It was killed. KV"),
        (seen(endpoint(**{**DOWN, "state": "draining"}), endpoint("b:1")), "busy", "Serving at its limit."),
        (seen(endpoint(), outcomes={"upstream_error": 1}), "warn", "1 request failed in 5 min."),
        (seen(endpoint(), outcomes={"queue_full": 5, "completed": 95}), "warn", "5 of 100 requests refused in 5 min."),
        (seen(endpoint(), outcomes={"queue_full": 1, "completed": 999}), "good", "Serving."),
        (seen(endpoint(), outcomes={"invalid_request": 99}), "good", "Serving."),
        (seen(endpoint(), ttft=Quantiles(count=20, p90=7.5)), "warn", "7.5 s (target 5 s)"),
        (seen(endpoint(), ttft=Quantiles(count=19, p90=7.5)), "good", "Serving."),
        (seen(endpoint(), drifted={"local chat": 1}), "warn", "counted 1 prompt of m otherwise than kvgate in 5 min."),
        (seen(endpoint(), preempted={"a:1": 3}), "warn", "a:1 preempted 3 requests in 5 min."),
        (seen(endpoint(forecast=1.12)), "warn", "112 % of its KV cache"),
        (seen(endpoint(scraped=966.0)), "warn", "a:1 has not told its metrics for 34 s."),
    ],
)
def test_what_is_wrong_comes_first(world, level, words):
    top = told(world)
    assert top.level == level
    assert words in top.text


def test_what_to_do_about_an_engine_that_ended_is_what_its_parent_says():
    assert (
        told(seen(endpoint(**DOWN, cause="It was killed.", remedy="Give it more memory."))).do == "Give it more memory."
    )
    assert "`kvgate doctor`" in told(seen(endpoint(**DOWN, cause="It was killed."))).do


def test_a_drift_says_what_the_prompts_brought():
    top = told(seen(endpoint(), drifted={"local chat+tools": 1200, "engine messages": 1}))
    assert "1,201 prompts of m" in top.text
    assert "(engine messages, local chat+tools)" in top.do


def test_the_worst_of_several_is_the_headline_and_each_is_a_sign():
    world = seen(endpoint(**DOWN), endpoint("b:1", gate_open=False, closed_by=("gate",)), outcomes={"queue_full": 9})
    assert [sign.level for sign in signs(world)] == ["warn", "warn", "busy"]
    assert told(world).since == 950.0
    assert told(world).do.startswith("Nobody listens there. `kvgate doctor`")
