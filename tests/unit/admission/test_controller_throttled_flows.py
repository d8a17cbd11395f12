"""A flow that a rule throttles keeps nothing from the others: they are served as if it did not wait."""

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.outcomes import Outcome
from gateway.admission.placing import rules
from gateway.admission.placing.rules import Ask, Next, Rule
from tests.unit.admission.playbook import arrived, at, done, nothing, progress, refused, up


def over_limit(ask: Ask) -> float:
    """Flows named "throttled" wait while more than 60 % of the cache is in use."""
    throttled = ask.request is not None and ask.request.arrival.flow.startswith("throttled")
    return (ask.endpoint.usage(ask.now) or 0.0) - 0.6 if throttled else 0.0


THROTTLED = Rule("throttled", "for the test", over_limit, after=Next.OTHER_FLOWS)


@pytest.fixture
def throttled(monkeypatch):
    """A rule that throttles flows, before all others."""
    monkeypatch.setattr(rules, "_THROTTLING", (THROTTLED,))
    monkeypatch.setattr(rules, "RULES", (THROTTLED, *rules.RULES))


def over(play, **settings):
    """70 of 100 blocks are in use."""
    seqs = settings.pop("seqs", None)
    p = play(**settings) >> up("a", blocks=100, seqs=seqs)
    return p >> arrived(1, blocks=70, flow="base", max_tokens=10_000) << Dispatch(1, "a") >> progress(r1=1) << nothing


def near_its_share(play, **settings):
    """The flow "noisy" has its share: what it has next must leave room for "quiet"."""
    p = play(**settings) >> up("a", blocks=100)
    p >> arrived(1, blocks=5, flow="quiet") << Dispatch(1, "a") >> progress(r1=1)
    return p >> arrived(2, blocks=60, flow="noisy") << Dispatch(2, "a") >> progress(r2=1) >> at(5.0)


def small_ones_that_go(p, count=20):
    """How many of so many small requests go, one after the other, each before its successor comes."""
    went = 0
    for request in range(1000, 1000 + count):
        p >> arrived(request, blocks=2, flow="small", max_tokens=5)
        while p.pending:
            command = p.pending.pop()
            assert isinstance(command, Dispatch)
            went += 1
            p >> progress(**{f"r{command.request}": 1}) >> done(command.request, 5)
    return went


@pytest.mark.usefixtures("throttled")
class TestBehindAThrottledFlow:
    def test_the_next_goes_and_the_flow_as_soon_as_it_is_throttled_no_more(self, play):
        p = over(play) >> arrived(2, blocks=5, flow="throttled") << nothing
        p >> arrived(3, blocks=5, flow="other") << Dispatch(3, "a") >> progress(r3=1) << nothing
        p >> arrived(4, blocks=5, flow="throttled") << nothing
        p >> done(1) << Dispatch(2, "a") << Dispatch(4, "a")

    def test_its_backlog_is_no_pressure_on_the_pool(self, play):
        p = over(play) >> arrived(2, blocks=5, flow="throttled") << nothing
        p >> at(3.0) >> done(1, 10_000) << Dispatch(2, "a")
        assert p.controller._pool.waits.drain_rate.measured(p.now) == (0.0, 0.0)

    def test_that_nobody_may_go_says_nothing_of_its_backlog(self, play):
        p = over(play, seqs=1) >> arrived(2, blocks=5, flow="throttled") << nothing
        assert not p.controller._all_closed

    @pytest.mark.parametrize("head", [False, True])
    def test_a_large_request_is_passed_max_passes_times(self, play, head):
        p = over(play, max_passes=2)
        if head:
            p >> arrived(2, blocks=2, flow="throttled") << nothing
        p >> arrived(3, blocks=25, flow="large") << nothing
        assert small_ones_that_go(p) == 2
        p >> done(1)
        assert {command.request for command in p.pending} >= {3}
        p.pending.clear()

    @pytest.mark.parametrize("head", [False, True])
    def test_a_request_of_another_lane_or_band_cannot_take_what_the_next_waits_for(self, play, head):
        p = over(play)
        if head:
            p >> arrived(2, blocks=2, flow="throttled") << nothing
        p >> arrived(3, blocks=25, flow="large") << nothing
        p >> arrived(4, blocks=2, flow="small", band=1) << nothing

    @pytest.mark.parametrize("head", [False, True])
    def test_a_new_flow_takes_turns_with_one_that_waits(self, play, head):
        p = over(play, seqs=2)
        if head:
            p >> arrived(2, 10, flow="throttled", max_tokens=45) << nothing
        p >> arrived(100, 10, flow="b", max_tokens=45) << Dispatch(100, "a")
        for request in range(101, 150):
            p >> arrived(request, 10, flow="b", max_tokens=45) << nothing
        running = 100

        def turn():
            nonlocal running
            p >> at(p.now + 1) >> done(running, 45)
            (command,) = p.pending
            p.pending.clear()
            running = command.request
            return running

        for _ in range(15):
            turn()
        for request in range(200, 220):
            p >> arrived(request, 10, flow="c", max_tokens=45) << nothing
        assert 4 <= sum(turn() >= 200 for _ in range(10)) <= 6

    @pytest.mark.parametrize("newcomers", [False, True])
    def test_what_it_lost_while_it_was_throttled_is_no_credit(self, play, newcomers):
        p = over(play, seqs=2)
        for request in range(300, 330):
            p >> arrived(request, 10, flow="throttled", max_tokens=45) << nothing
        p >> arrived(100, 10, flow="b", max_tokens=45) << Dispatch(100, "a")
        for request in range(101, 150):
            p >> arrived(request, 10, flow="b", max_tokens=45) << nothing
        for request in range(100, 120):
            p >> at(p.now + 1) >> done(request, 45) << Dispatch(request + 1, "a")
        p >> arrived(400, 10, flow="long", max_tokens=45) >> at(p.now + 1) >> done(1, 10_000)
        (command,) = p.pending
        p.pending.clear()
        running, went = command.request, []
        for step in range(20):
            if newcomers:
                p >> arrived(500 + step, 10, flow=f"new-{step}", max_tokens=45) << nothing
            p >> at(p.now + 1) >> done(running, 45)
            (command,) = p.pending
            p.pending.clear()
            running = command.request
            went.append(running)
        of_b = sum(100 <= request < 200 for request in went)
        assert of_b >= (3 if newcomers else 8), went

    def test_nobody_is_refused_for_its_backlog(self, play):
        one, other = (self.waiting_before_the_first_refusal(play, throttled=throttled) for throttled in (0, 9))
        assert one == other >= 9

    @staticmethod
    def waiting_before_the_first_refusal(play, throttled):
        """How many of a flow that is served one a second may wait."""
        p = over(play, seqs=2, ttft_target=5.0)
        p >> arrived(100, 10, flow="b", max_tokens=45) << Dispatch(100, "a")
        p >> arrived(101, 10, flow="b", max_tokens=45) << nothing
        for second in range(1, 21):
            for request in range(500, 500 + throttled if second == 20 else 500):
                p >> arrived(request, 10, flow="throttled", max_tokens=45) << nothing
            p >> at(second) >> done(99 + second, 45) << Dispatch(100 + second, "a")
            p >> arrived(101 + second, 10, flow="b", max_tokens=45) << nothing
        for request in range(200, 240):
            p >> arrived(request, 10, flow="b", max_tokens=45)
            if p.pending:
                p << refused(request, Outcome.WAIT_TOO_LONG)
                return request - 200
        return None

    def test_however_many_flows_are_throttled(self, play):
        p = over(play)
        for request in range(10, 16):
            p >> arrived(request, blocks=2, flow=f"throttled-{request}") << nothing
        p >> arrived(50, blocks=2, flow="other") << Dispatch(50, "a")

    @pytest.mark.parametrize("band", [0, 1])
    def test_explain_says_that_another_would_go(self, play, band):
        p = over(play) >> arrived(2, blocks=5, flow="throttled") << nothing
        told = p.controller.explain(arrived(3, blocks=5, flow="other", band=band), p.now)
        assert (told.verdict, told.rule) == ("dispatch", "fits")
        told = p.controller.explain(arrived(3, blocks=5, flow="throttled", band=band), p.now)
        assert (told.verdict, told.rule) == ("queue", "throttled")


@pytest.mark.parametrize("head", [False, True])
def test_behind_a_flow_that_has_its_share_a_large_request_is_passed_max_passes_times(play, head):
    p = near_its_share(play, max_passes=2)
    if head:
        p >> arrived(3, blocks=24, flow="noisy") << nothing
    p >> arrived(4, blocks=30, flow="large") << nothing
    assert small_ones_that_go(p) == 2


@pytest.mark.parametrize("lane", [{}, {"waited": 1, "failures": 1, "avoid": "b"}])
def test_of_a_flow_that_has_its_share_a_smaller_request_of_any_lane_waits_for_its_head(play, lane):
    p = play() >> up("a", blocks=100)
    p >> arrived(1, blocks=5, flow="quiet") << Dispatch(1, "a") >> progress(r1=1)
    p >> arrived(2, blocks=30, flow="noisy") << Dispatch(2, "a") >> progress(r2=1) >> at(5.0)
    p >> arrived(3, blocks=40, flow="noisy") << nothing
    p >> arrived(4, blocks=1, flow="noisy", **lane) << nothing
    p >> arrived(5, blocks=1, flow="quiet", **lane) << Dispatch(5, "a")


def test_explain_says_that_a_flow_within_its_share_would_go(play):
    p = near_its_share(play) >> arrived(3, blocks=24, flow="noisy") << nothing
    told = p.controller.explain(arrived(4, blocks=5, flow="quiet"), p.now)
    assert (told.verdict, told.rule) == ("dispatch", "fits")


@pytest.mark.parametrize("idle", [False, True])
def test_on_an_idle_endpoint_it_is_throttled_only_by_a_rule_that_says_so(play, monkeypatch, idle):
    always = Rule("throttled", "for the test", lambda ask: ask.request is not None, after=Next.OTHER_FLOWS, idle=idle)
    monkeypatch.setattr(rules, "_THROTTLING", (always,))
    p = play() >> up("a", blocks=100) >> arrived(1, blocks=5)
    _ = p << nothing if idle else p << Dispatch(1, "a")
