"""What is told of programs: to people, as JSON, and in the files of engines."""

import io
import json
import stat

import pytest
import structlog

from engine.diagnosis.sign import Diagnosis
from engine.events import BecameReady, Crashed, GaveUp, Launched, LinePrinted
from gateway.config.settings import LogSettings
from gateway.ops.logs import configure
from gateway.serve.supervision_log import EngineLog, SupervisionLog

WHY = Diagnosis("It does not fit.", "Give it less.", "needs [bold] 2 GiB")


@pytest.fixture
def told():
    """Tells events; what was shown, and what of it at the end."""

    def tell(*events, folder=None, format_="console"):
        out = io.StringIO()
        configure(LogSettings(format=format_), out)
        log = SupervisionLog(folder, for_people=format_ == "console")
        for event in events:
            log(event)
        before = len(out.getvalue())
        log.last_words()
        return out.getvalue().splitlines(), out.getvalue()[before:].splitlines()

    yield tell
    structlog.reset_defaults()


def test_people_get_a_line_for_each_event(told):
    shown, _ = told(Launched("e", 1), LinePrinted("e", "[red]" + "x" * 200))
    assert [line[8:] for line in shown] == ["  e: starting", "  e | [red]" + "x" * 200]


def test_what_an_engine_prints_goes_to_its_file_and_the_path_is_told_once(told, tmp_path):
    printed = [LinePrinted("engine org/chat 0", text) for text in ("INFO one", "two")]
    shown, _ = told(*printed, Launched("engine org/chat 0", 1), folder=tmp_path / "logs")
    file = tmp_path / "logs" / "engine-org-chat-0.log"
    assert [line[10:] for line in shown] == [
        f"engine org/chat 0: its log is {file}",
        "engine org/chat 0: starting",
    ]
    assert [line.partition("Z ")[2] for line in file.read_text().splitlines()] == ["INFO one", "two"]
    assert file.parent.stat().st_mode & 0o77 == 0


def test_elsewhere_each_event_is_json_with_its_program(told):
    line = "(EngineCore pid=7) ERROR 11-20 18:04:19 [core.py:133] it broke"
    shown, _ = told(Launched("e", 1), LinePrinted("e", line), Crashed("e", WHY), format_="json")
    said = [{name: value for name, value in json.loads(line).items() if name != "timestamp"} for line in shown]
    assert said == [
        {"event": "e: starting", "level": "info", "program": "e"},
        {"event": "the engine printed", "level": "error", "program": "e", "line": line},
        {"event": f"e: ended. {WHY}", "level": "warning", "program": "e"},
    ]


def test_a_full_disk_is_said_once_and_stops_nothing(told, tmp_path):
    (tmp_path / "e.log").symlink_to("/dev/full")
    shown, _ = told(*[LinePrinted("e", "line")] * 3, BecameReady("e", 1.0), folder=tmp_path)
    assert [line[10:] for line in shown[1:]] == [
        f"warning: {tmp_path}/e.log cannot be written: No space left on device. What the engine prints is lost.",
        "e: ready after 1 s",
    ]


def test_an_engines_log_is_bounded_and_the_part_before_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr("gateway.serve.supervision_log._ENGINE_LOG_BYTES", 1000)
    log = EngineLog(tmp_path / "e.log")
    for number in range(200):
        log.write(f"line {number}")
    kept = [(tmp_path / name).read_text().splitlines() for name in ("e.log.1", "e.log")]
    numbers = [int(line.rpartition(" ")[2]) for lines in kept for line in lines]
    assert numbers == list(range(numbers[0], 200))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2100
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_last_words_are_why_the_way_out_and_where_to_read_on(told, tmp_path):
    _, last = told(LinePrinted("e", "log"), GaveUp("e", WHY), LinePrinted("gateway", "bye"), folder=tmp_path)
    assert [line[10:] for line in last] == [
        "error: e could not run: It does not fit.",
        "Give it less.",
        "It said: needs [bold] 2 GiB",
        f"Its log: {tmp_path}/e.log",
    ]


def test_what_came_back_is_not_mourned(told):
    assert told(GaveUp("e", WHY), BecameReady("e", 1.0))[1] == []
