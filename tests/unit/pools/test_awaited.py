from types import SimpleNamespace

from gateway.pools.awaited import Awaited


def test_it_is_said_when_the_oldest_of_a_model_comes_or_goes():
    clock, said = SimpleNamespace(now=100.0), []
    awaited = Awaited(said.append, lambda: clock.now)
    with awaited.waiting("red") as first:
        clock.now = 102.0
        with awaited.waiting("red") as second, awaited.waiting("blue"):
            assert (first(), second()) == (1, 2)
            clock.now = 103.0
            awaited.say()
    assert said == [{"red": 0.0}, {"red": 2.0, "blue": 0.0}, {"red": 3.0, "blue": 1.0}, {"red": 3.0}, {}]
    assert len(said) == 5, "the second of one model changes nothing"
