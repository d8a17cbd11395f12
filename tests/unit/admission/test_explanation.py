"""What the core says it would do, beside what it does."""

from collections.abc import Iterable, Mapping
from enum import Enum

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.controller import AdmissionController
from gateway.admission.events import Arrived, Back, Demand, EndpointDown, Returned, ShutdownStarted, Tick
from gateway.admission.outcomes import Outcome
from gateway.admission.policy import Bounds, Policy
from tests.unit.admission.playbook import arrived, at, done, nothing, progress, refused, scrape, up


def asked(p, *args, **settings):
    """Of a request 99 that would come now."""
    return p.controller.explain(arrived(99, *args, **settings), p.now)


def full(play, **settings):
    """90 of 100 blocks are in use."""
    p = play(**settings) >> up("a", blocks=100) >> arrived(1, blocks=90, max_tokens=1) << Dispatch(1, "a")
    return p >> progress(r1=1) >> at(1)


def test_what_fits_goes(play):
    p = play() >> up("a", blocks=100) >> up("b", blocks=50) >> arrived(1, blocks=10) << Dispatch(1, "a")
    told = asked(p, blocks=4, n=2, max_tokens=30)
    assert (told.verdict, told.rule, told.endpoint) == ("dispatch", "fits", "b")
    assert (told.prompt_tokens, told.holds_blocks, told.predicted_output) == (63, 5, 60)
    assert (told.predicted_wait, told.predicted_prefill, told.retry_after) == (0.0, 0.0, None)
    assert [(c.endpoint, c.takes, c.rule) for c in told.candidates] == [("a", True, "fits"), ("b", True, "fits")]
    p >> arrived(99, blocks=4, n=2, max_tokens=30) << Dispatch(99, "b")


def test_each_endpoint_shows_its_use_and_forecast_with_and_without_it(play):
    p = play(bounds=Bounds.BOTH) >> up("a", blocks=100) >> arrived(1, blocks=10, max_tokens=1 + 160) << Dispatch(1, "a")
    (candidate,) = asked(p >> at(1) >> Tick(), blocks=20, max_tokens=1 + 320).candidates
    assert (candidate.usage, candidate.forecast_without) == (0.1, 0.2)
    assert candidate.forecast_with == pytest.approx(0.5)  # at the end of the first: 10 + 20 + 2 * 10


def test_each_endpoint_says_what_it_lacks_in_the_units_of_its_rule(play):
    p = full(play) >> up("b", blocks=5) >> up("c", blocks=100, seqs=1) >> arrived(2, blocks=99) << Dispatch(2, "c")
    a, b, c = asked(p >> progress(r2=1) >> Tick(), blocks=10).candidates
    assert (a.rule, a.lacks, a.unit) == ("kv", pytest.approx(10.0), "blocks")
    assert (b.rule, b.lacks, b.unit) == ("context_length", None, None)
    assert (c.rule, c.lacks, c.unit) == ("sequences", 1, "sequences")


def test_an_endpoint_too_short_for_the_output_limit(play):
    p = play() >> up("a", length=100) >> up("b", length=200)
    told = p.controller.explain(Arrived(99, Demand((50,), 100, least_length=150)), p.now)
    assert (told.endpoint, [c.rule for c in told.candidates]) == ("b", ["context_length", "fits"])


def test_where_the_size_is_unknown_there_is_no_forecast(play):
    (candidate,) = asked(play() >> up("a", blocks=None)).candidates
    assert (candidate.usage, candidate.forecast_without, candidate.forecast_with) == (None, None, None)
    assert asked(play() >> up("a", blocks=None)).holds_blocks is None


@pytest.mark.parametrize("rule", ["kv", "forecast", "sequences", "prefill", "busy"])
def test_what_does_not_fit_is_queued_by_the_rule_that_keeps_it(play, rule):
    p = (
        play(bounds=Bounds.BOTH)
        >> up("a", blocks=100, seqs=2)
        >> arrived(1, blocks=30, max_tokens=400)
        << Dispatch(1, "a")
    )
    settings = {"blocks": 10, "max_tokens": 1}
    if rule != "prefill":
        p >> progress(r1=1)
    if rule == "kv":
        settings["blocks"] = 70
    if rule == "forecast":
        settings = {"blocks": 30, "max_tokens": 400}
    if rule == "sequences":
        p >> arrived(2, blocks=1, max_tokens=1) << Dispatch(2, "a") >> progress(r2=1)
    if rule == "busy":
        p >> arrived(2, blocks=1, max_tokens=1) << Dispatch(2, "a") >> Returned(2, Back.BUSY) << nothing
    told = asked(p, **settings)
    assert (told.verdict, told.rule, told.endpoint) == ("queue", rule, "a")
    assert [(c.takes, c.rule) for c in told.candidates] == [(False, rule)]
    p >> arrived(99, **settings) << nothing


def test_behind_somebody_it_waits_for_its_turn(play):
    p = full(play) >> arrived(2, blocks=20) << nothing >> done(1) << Dispatch(2, "a")
    p >> arrived(3, blocks=80) << nothing >> progress(r2=1)
    told = asked(p, blocks=5)
    assert (told.verdict, told.rule, told.endpoint) == ("queue", "order", "a")
    p >> arrived(99, blocks=5) << nothing


def test_without_an_endpoint_it_waits_for_one(play):
    p = play()
    told = asked(p)
    assert (told.verdict, told.rule, told.endpoint, told.candidates) == ("queue", "no_endpoint", None, ())
    told = asked(p >> up("a") >> EndpointDown("a", "killed"))
    assert (told.verdict, told.rule, told.endpoint) == ("queue", "no_endpoint", None)
    assert [(c.takes, c.rule) for c in told.candidates] == [(False, "down")]


def test_an_endpoint_out_of_its_fronts_reach(play):
    p = play() >> up("a") >> arrived(1) << Dispatch(1, "a") >> Returned(1, Back.UNREACHED) << nothing
    told = asked(p)
    (candidate,) = told.candidates
    assert (told.verdict, told.rule, told.endpoint) == ("queue", "no_endpoint", None)
    assert (candidate.takes, candidate.rule) == (False, "unreached")


def test_what_fits_nowhere_is_refused(play):
    p = play() >> up("a", length=100) >> up("b", length=200)
    told = asked(p, 200)
    assert (told.verdict, told.rule) == (Outcome.CONTEXT_LENGTH_EXCEEDED.value, "context_length")
    assert (told.endpoint, told.retry_after) == (None, None)
    assert [c.rule for c in told.candidates] == ["context_length", "context_length"]
    p >> arrived(99, 200) << refused(99, Outcome.CONTEXT_LENGTH_EXCEEDED)


def test_a_full_queue_refuses(play):
    p = full(play, max_bytes=10)
    told = asked(p, blocks=5, size=11)
    assert (told.verdict, told.rule) == (Outcome.QUEUE_FULL.value, "queue_full")
    p >> arrived(99, blocks=5, size=11) << refused(99, Outcome.QUEUE_FULL)


def test_who_would_wait_too_long_is_refused_and_told_when_to_come(play):
    p = play(ttft_target=5.0) >> up("a", seqs=1) >> arrived(0, max_tokens=45) << Dispatch(0, "a")
    p >> arrived(1, max_tokens=45) << nothing
    for second in range(1, 11):
        p >> at(second) >> done(second - 1, 45) << Dispatch(second, "a")
        p >> arrived(second + 1, max_tokens=45) << nothing
    told = asked(p, max_tokens=45)
    assert (told.verdict, told.rule, told.retry_after, told.ttft_target) == ("queue", "sequences", None, 5.0)
    assert told.predicted_wait == pytest.approx(1.0, rel=0.1)
    told = asked(p, max_tokens=45, ttft=0.4)
    assert (told.verdict, told.rule) == (Outcome.WAIT_TOO_LONG.value, "ttft_target")
    assert (told.endpoint, told.ttft_target) == (None, 0.4)
    assert told.retry_after == pytest.approx(told.predicted_wait - 0.4)
    p >> arrived(99, max_tokens=45, ttft=0.4) << refused(99, Outcome.WAIT_TOO_LONG)


def test_a_gateway_that_shuts_down_refuses(play):
    told = asked(play() >> up("a") >> ShutdownStarted())
    assert (told.verdict, told.rule, told.endpoint) == (Outcome.DRAINING.value, "draining", None)


def test_a_cached_prefix_is_told_and_shortens_the_prefill(play):
    prefix = ((64, 1), (128, 2))
    p = play() >> up("a", blocks=100) >> arrived(1, 159, prefix=prefix) << Dispatch(1, "a")
    p >> at(2) >> progress(r1=1) >> done(1)
    told = asked(p, 159, prefix=prefix)
    assert [c.cached_tokens for c in told.candidates] == [128]
    assert told.predicted_prefill == pytest.approx(asked(p, 159).predicted_prefill * 31 / 159)


def written(thing, known):
    """All that an object consists of, as it is now: what it leads to again is named by when it was met first."""
    if thing is None or callable(thing) or isinstance(thing, int | float | str | Enum):
        return thing
    if id(thing) in known:
        return known[id(thing)]
    known[id(thing)] = f"#{len(known)}"
    if isinstance(thing, Mapping):
        return [(written(key, known), written(value, known)) for key, value in thing.items()]
    if isinstance(thing, Iterable) and not hasattr(thing, "__slots__") and not hasattr(thing, "__dict__"):
        return [written(item, known) for item in thing]
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names += getattr(thing, "__dict__", {})
    return [(name, written(getattr(thing, name, None), known)) for name in names]


@pytest.mark.parametrize("bounds", Bounds)
def test_it_leaves_no_trace_in_what_the_core_knows(play, bounds):
    prefix = ((64, 1),)
    p = play(bounds=bounds, ttft_target=5.0) >> up("a", blocks=100) >> up("b", blocks=10)
    p >> arrived(1, blocks=50, max_tokens=400, prefix=prefix) << Dispatch(1, "a") >> progress(r1=1)
    p >> at(1) >> arrived(2, blocks=39, max_tokens=400) << Dispatch(2, "a") if bounds is Bounds.HYSTERESIS else p
    core = p.controller
    known = [core._endpoints, core._predictor, core._waits, core._tokens, core._places]
    before = written(known, {})
    for flow in ("", "new"):
        for blocks in (1, 40, 200):
            core.explain(arrived(99, blocks=blocks, flow=flow, max_tokens=400, prefix=prefix), 3.0)
    assert before == written(known, {})


@pytest.mark.parametrize("bounds", Bounds)
def test_asking_changes_nothing(bounds):
    policy = Policy(bounds=bounds, ttft_target=1.0, max_passes=2)
    silent, curious = AdmissionController(policy), AdmissionController(policy)
    answers = set()

    def tell(event, now):
        for flow, blocks in [("", 3), ("new", 30), ("a", 9)]:
            asked = curious.explain(arrived(99, blocks=blocks, flow=flow, band=1, prefix=((32, 1),)), now)
            answers.add(asked.verdict)
        commands = silent.handle(event, now)
        assert commands == curious.handle(event, now)
        return [command.request for command in commands if isinstance(command, Dispatch)]

    tell(up("a", blocks=40), 0.0)
    running = []
    for request in range(1, 40):
        now = request * 0.2
        running += tell(arrived(request, blocks=9, max_tokens=200, flow="ab"[request % 2], prefix=((32, 1),)), now)
        running += tell(progress(**{f"r{name}": 20 for name in running}), now)
        running += tell(scrape("a", now, kv=0.5, running=len(running), waiting=0, tokens=40 * request), now)
        if request % 3 == 0:
            running += tell(done(running.pop(0), 20), now + 0.1)
        assert silent.snapshot(now) == curious.snapshot(now)
    assert answers == {"dispatch", "queue", Outcome.WAIT_TOO_LONG.value}
