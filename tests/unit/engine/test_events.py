import pytest

from engine import events
from engine.diagnosis.sign import Diagnosis
from engine.events import SupervisorEvent
from engine.phases import Progress, StartPhase

WHY = Diagnosis("The port is taken.", "Free it.")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (events.Launched("m/0", 1), "m/0: starting"),
        (events.Launched("m/0", 3), "m/0: starting (attempt 3)"),
        (events.Progressed("m/0", Progress(StartPhase.LOADING, "40%")), "m/0: loading weights: 40%"),
        (
            events.Progressed("m/0", Progress(StartPhase.LOADING), 40.2, 71),
            "m/0: loading weights (about 40 s; ready in about 71 s)",
        ),
        (events.LinePrinted("m/0", "hello"), "m/0 | hello"),
        (events.BecameReady("m/0", 31.4), "m/0: ready after 31 s"),
        (events.Crashed("m/0", WHY), "m/0: ended. The port is taken.\nFree it."),
        (events.Chosen("m/0", "--x 1: it is so"), "m/0: --x 1: it is so"),
        (events.Waiting("m/0", "another downloads"), "m/0: waiting: another downloads"),
        (events.Refitted("m/0", 2, 3, "no graphs"), "m/0: starting with less (try 2 of 3): no graphs"),
        (events.Retrying("m/0", 2.0), "m/0: starting again in 2 s"),
        (events.GaveUp("m/0", WHY), "m/0: given up"),
        (events.Stopping("m/0"), "m/0: stopping"),
        (events.Overdue("m/0"), "m/0: took too long, killed"),
        (events.Stopped("m/0"), "m/0: stopped"),
    ],
)
def test_each_event_reads_as_a_line(event: SupervisorEvent, line: str) -> None:
    assert str(event) == line
