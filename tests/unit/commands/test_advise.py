import json

import pytest
from typer.testing import CliRunner

import gateway.commands.advise
from engine.plan.traffic import Distribution, Range, Traffic
from gateway.advice.history import HistoryError
from gateway.advice.rules import ENOUGH, EndpointPast, Past
from gateway.cli import command_line

LENGTHS = Distribution(Range(65, 96), Range(129, 192), Range(193, 256))
SMALL = Past("m", Traffic("http://kvgate/metrics", ENOUGH - 1, span=7200, total_tokens=LENGTHS))
FINE = Past("m", Traffic("http://kvgate/metrics", 5000, span=90, total_tokens=LENGTHS))
LARGE = Past("m", FINE.traffic, endpoints=(EndpointPast("e", max_model_len=8192, peak_sequences=3),))


@pytest.fixture
def advise(monkeypatch):
    """Runs the command with this history, and tells what it was read from."""

    def run(past, *options):
        asked = []
        monkeypatch.setattr(gateway.commands.advise, "running", lambda *of: asked.append(of) or past)
        monkeypatch.setattr(gateway.commands.advise, "recorded", lambda *of: asked.append(of) or past)
        return CliRunner().invoke(command_line(), ["advise", *options]), asked

    return run


def test_what_to_change_comes_first_and_then_what_is_fine(advise):
    result, _ = advise((LARGE,))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "m: 5,000 requests answered in 90 seconds (http://kvgate/metrics)"
    assert lines[1] == "  context length: p99 129 to 192 tokens, at most 193 to 256, of max_model_len 8,192"
    assert lines[2].startswith("    change  --max-model-len 384")
    assert lines[3].startswith("    gain    the least KV cache")
    assert lines[4].startswith("  fine    sequences: at most 3 at once")


def test_nothing_to_change_and_too_little_to_tell_are_answers(advise):
    assert "  Nothing to change." in advise((FINE,))[0].stdout
    said = advise((SMALL,))[0].stdout
    assert "99 requests answered in 2 hours" in said
    assert "Too little to tell: 99 requests were answered, 100 are wanted." in said


def test_json_has_every_finding_and_what_was_seen(advise):
    shown = json.loads(advise((LARGE, SMALL), "--json")[0].stdout)["histories"]
    assert [history["enough"] for history in shown] == [True, False]
    assert shown[0]["traffic"]["total_tokens"]["p99"] == {"low": 129, "high": 192}
    assert set(shown[0]["findings"][0]) == {"subject", "seen", "change", "gain"}
    assert (shown[1]["findings"], shown[1]["wanted_requests"]) == ([], ENOUGH)


def test_a_log_alone_asks_nobody(advise, tmp_path, monkeypatch):
    monkeypatch.delenv("KVGATE_AUTH__ADMIN_KEY", raising=False)
    log = tmp_path / "events"
    assert advise((FINE,), "--event-log", str(log))[1] == [(log,)]
    assert advise((FINE,))[1] == [("http://127.0.0.1:8080", None)]
    both = advise((FINE,), "--event-log", str(log), "--url", "http://k", "--admin-key", "sesame")
    assert both[1] == [("http://k", "sesame"), (log,)]


def test_a_long_log_says_how_long_it_takes(advise, tmp_path):
    log = tmp_path / "events"
    with log.open("wb") as file:
        file.truncate(50 * 10**6)
    assert advise((FINE,), "--event-log", str(log))[0].stderr.endswith("events takes about 3 minutes\n")
    with log.open("wb") as file:
        file.truncate(10**6)
    assert advise((FINE,), "--event-log", str(log))[0].stderr == ""


def test_no_history_is_an_error_that_says_why(advise, monkeypatch):
    result, _ = advise(())
    assert result.exit_code == 2
    assert "no model has been served yet" in result.stderr

    def unreachable(*_):
        raise HistoryError("http://k/kvgate/state: cannot be reached: [Errno 111] Connection refused")

    monkeypatch.setattr(gateway.commands.advise, "running", unreachable)
    result = CliRunner().invoke(command_line(), ["advise"])
    assert result.exit_code == 2
    assert result.stderr == "kvgate: http://k/kvgate/state: cannot be reached: [Errno 111] Connection refused\n"
