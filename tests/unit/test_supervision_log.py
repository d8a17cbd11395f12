import io

from rich.console import Console

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, GaveUp, LinePrinted
from gateway.supervision_log import SupervisionLog

WHY = Diagnosis("It does not fit.", "Give it less.", "needs [bold] 2 GiB")


def told(*events):
    out = io.StringIO()
    log = SupervisionLog(Console(file=out, width=60))
    for event in events:
        log(event)
    before = len(out.getvalue())
    log.last_words()
    return out.getvalue(), out.getvalue()[before:]


def test_events_are_lines_as_they_come():
    long = "x" * 200
    assert told(LinePrinted("e", f"[red]{long}"))[0] == f"e | [red]{long}\n"


def test_the_last_words_are_why_and_the_way_out():
    _, last = told(LinePrinted("e", "log"), GaveUp("e", WHY), LinePrinted("gateway", "bye"))
    assert last.splitlines() == [
        "kvgate: e could not run: It does not fit.",
        "kvgate: Give it less.",
        "kvgate: vLLM said: needs [bold] 2 GiB",
    ]


def test_what_came_back_is_not_mourned():
    assert told(GaveUp("e", WHY), BecameReady("e", 1.0))[1] == ""
