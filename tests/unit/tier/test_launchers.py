import structlog

from gateway.admission.events import ResidencyPhase
from gateway.pools.launcher import EngineNews
from gateway.tier.frames import Launch, Seems
from gateway.tier.launchers import Launchers
from gateway.tier.seat import Seat

AT = "10.0.0.7:8001"


class World:
    """An owner's launchers, and what they said and passed on."""

    def __init__(self):
        self.ordered, self.news, self.lost = [], [], []
        self.launchers = Launchers(lambda seat, message: self.ordered.append((seat, message)))
        self.launchers.on_news = self.news.append
        self.launchers.on_lost = self.lost.append

    def orders(self):
        self.launchers.run(AT)
        self.launchers.end(AT)
        self.launchers.seems(AT, "up", "it answers")
        ordered, self.ordered = self.ordered, []
        return ordered


def seat(machine="10.0.0.7:8500"):
    return Seat(machine, 0.0)


def news(turn=1, phase=ResidencyPhase.STOPPED):
    return EngineNews(AT, phase, turn=turn)


def test_an_order_goes_to_the_front_that_speaks_for_the_engines_parent():
    world, front = World(), seat()
    assert world.orders() == [], "nobody launches it"
    world.launchers.said(front, news())
    assert world.news == [news()]
    said = [Launch(AT, runs=True), Launch(AT, runs=False), Seems(AT, "up", "it answers")]
    assert world.orders() == [(front, message) for message in said]


def test_a_front_that_has_gone_takes_what_is_known_with_it():
    world, front, other = World(), seat(), seat()
    world.launchers.said(front, news())
    world.launchers.left(other)
    assert world.lost == []
    world.launchers.left(front)
    world.launchers.left(front)
    assert (world.lost, world.orders()) == ([AT], [])


def test_what_a_front_says_to_which_the_parent_talked_before_does_not_count():
    world, first, second = World(), seat(), seat()
    world.launchers.said(second, news(turn=2))
    world.launchers.said(first, news(turn=1))
    assert (world.news, world.lost) == ([news(turn=2)], [])
    world.launchers.left(first)
    assert [front for front, _ in world.orders()] == [second] * 3


def test_when_the_parent_turns_to_another_front_all_is_taken_anew():
    world, first, second = World(), seat(), seat()
    world.launchers.said(first, news(turn=1))
    world.launchers.said(second, news(turn=2, phase=ResidencyPhase.STARTING))
    world.launchers.said(first, news(turn=1))
    assert (world.lost, world.news[1:]) == ([AT], [news(turn=2, phase=ResidencyPhase.STARTING)])
    world.launchers.left(first)
    assert world.lost == [AT]


def test_a_parent_that_was_started_again_counts_from_its_first_turn():
    world, before, after = World(), seat(), seat()
    world.launchers.said(before, news(turn=7))
    world.launchers.left(before)
    world.launchers.said(after, news(turn=1))
    assert [front for front, _ in world.orders()] == [after] * 3


def test_of_two_gateways_that_launch_one_engine_the_first_one_does():
    world, first, second = World(), seat(), seat("10.0.0.8:8500")
    world.launchers.said(first, news())
    with structlog.testing.capture_logs() as logs:
        world.launchers.said(second, news(turn=2))
    assert logs[0]["gateways"] == ["10.0.0.7:8500", "10.0.0.8:8500"]
    assert len(world.news) == 1
    assert [front for front, _ in world.orders()] == [first] * 3


def test_of_two_gateways_that_launch_one_engine_the_one_that_runs_it_counts():
    world, stopped, runs = World(), seat(), seat("10.0.0.8:8500")
    up = news(phase=ResidencyPhase.UP)
    for front, said in ((stopped, news(turn=3)), (runs, up), (stopped, news(turn=4))):
        world.launchers.said(front, said)
    assert (world.lost, world.news) == ([AT], [news(turn=3), up])
    assert [front for front, _ in world.orders()] == [runs] * 3
    third = seat("10.0.0.9:8500")
    world.launchers.said(third, up)
    world.launchers.left(runs)
    assert [front for front, _ in world.orders()] == [third] * 3


def test_a_parent_that_was_started_again_is_heard_when_its_front_of_before_is_missed_at_last():
    world, before, after = World(), seat(), seat()
    world.launchers.said(before, news(turn=7))
    world.launchers.said(after, news(turn=1))
    assert world.news == [news(turn=7)]
    world.launchers.left(before)
    assert (world.lost, world.news[1:]) == ([AT], [news(turn=1)])
    assert [front for front, _ in world.orders()] == [after] * 3


def test_a_gateway_that_takes_the_place_of_another_launches_when_that_one_has_gone():
    world, before, after, gone = World(), seat(), seat("10.0.0.7:8600"), seat("10.0.0.7:8700")
    for front in (before, gone, after):
        world.launchers.said(front, news())
    world.launchers.left(gone)
    assert len(world.news) == 1
    world.launchers.left(before)
    assert [front for front, _ in world.orders()] == [after] * 3
    world.launchers.left(after)
    assert world.orders() == []
