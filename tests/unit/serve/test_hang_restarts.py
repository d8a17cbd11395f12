from dataclasses import replace

import pytest

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, Stopped
from engine.program import Program, Role
from engine.program_lifecycle import Policy
from gateway.serve.hang_restarts import Hangs

GATEWAY = Program("gateway", Role.GATEWAY, (), {})
HUNG = "hung 127.0.0.1:1 no progress for 30 s"


def watched(patience=60.0):
    """Over one engine that has been ready since 0."""
    engine = Program("e", Role.ENGINE, (), {}, policy=Policy(hung_timeout=patience))
    hangs = Hangs({"127.0.0.1:1": engine}.get)
    hangs.on_event(BecameReady("e", 1.0), 0)
    return hangs


@pytest.mark.parametrize(
    ("history", "overdue_at"),
    [
        ([(100, HUNG)], 160),
        ([(100, "down 127.0.0.1:1 no answer")], 160),
        ([(100, HUNG), (120, "down 127.0.0.1:1 no answer")], 160),
        ([(100, HUNG), (120, "trial 127.0.0.1:1 tried again"), (150, HUNG)], 160),
        ([(100, HUNG), (120, "up 127.0.0.1:1 it makes progress again"), (150, HUNG)], 210),
        ([(100, HUNG), (120, "up 127.0.0.1:1 it makes progress again")], None),
        ([(100, HUNG), (120, "unseen 127.0.0.1:1")], None),
        ([(100, HUNG), (120, "asleep 127.0.0.1:1 the engine sleeps")], None),
        ([(100, "trial 127.0.0.1:1 tried again")], None),
        ([(100, "suspect 127.0.0.1:1 the only request on it has had no token for 30 s")], None),
        ([(100, "blocked 127.0.0.1:1 no answer within 5 s")], None),
        ([(100, "blocked 127.0.0.1:1 no answer within 5 s"), (140, "down 127.0.0.1:1 nothing for 40 s more")], 200),
        ([(100, HUNG), (120, "trial 127.0.0.1:1 tried again"), (130, "blocked 127.0.0.1:1 no answer")], 160),
        ([(100, "starting 127.0.0.1:1 no probe answered yet")], None),
        ([(100, "hung 10.0.0.1:1 of somebody else")], None),
        ([(100, HUNG), (130, BecameReady("e", 1.0))], 190),
        ([(100, HUNG), (130, Crashed("e", Diagnosis("It died.")))], None),
        ([(100, HUNG), (130, Stopped("gateway"))], None),
        ([(100, HUNG), (130, Crashed("gateway", Diagnosis("It died.")))], None),
    ],
)
def test_an_engine_is_overdue_when_it_has_hung_for_as_long_as_it_may(history, overdue_at):
    hangs = watched()
    for at, what in history:
        if isinstance(what, str):
            hangs.on_news(GATEWAY, what, at)
        else:
            hangs.on_event(what, at)
    assert next((now for now in range(150, 400) if hangs.overdue(now, "gateway")), None) == overdue_at


def test_the_reason_is_the_gateways():
    hangs = watched()
    hangs.on_news(GATEWAY, HUNG, 100)
    assert hangs.overdue(160, "gateway") == {"e": "It hung: no progress for 30 s, and nothing changed in 60 s."}


def test_what_a_gateway_said_that_leaves_does_not_count():
    """In a tier it hears no more of an engine."""
    hangs = watched()
    hangs.on_news(GATEWAY, HUNG, 100)
    hangs.on_news(replace(GATEWAY, name="gateway #2"), "up 127.0.0.1:1 it makes progress again", 120)
    assert hangs.overdue(160, "gateway #2") == {}


def test_one_that_may_hang_for_ever_does():
    hangs = watched(patience=None)
    hangs.on_news(GATEWAY, HUNG, 100)
    assert hangs.overdue(10**6, "gateway") == {}
