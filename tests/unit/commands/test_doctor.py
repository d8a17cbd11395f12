import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.diagnosis import look as looking
from engine.diagnosis import machine
from engine.diagnosis.sign import Diagnosis
from engine.diagnosis.table import SIGNS
from gateway.cli import command_line
from gateway.commands import doctor as doctor_command
from tests.ports import free_port

HEADS = "ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3).\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
RUNS = CliRunner()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.write_text(HEADS)
    return path


def test_a_log_is_read_and_answered_with_cause_remedy_and_evidence(log: Path) -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--log", str(log)])
    assert result.exit_code == 1
    said = result.stdout
    assert "! The model's 4 attention heads cannot be split over 3 GPUs." in said
    assert "do    Give a --tensor-parallel-size of 1, 2, 4;" in said
    assert f"seen  {HEADS.strip()}" in said


def test_a_log_from_standard_input() -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--log", "-"], input=HEADS)
    assert result.exit_code == 1
    assert "cannot be split" in result.stdout


def test_a_log_with_nothing_wrong(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("INFO 11-20 18:11:00 [x.py:1] fine\n")
    result = RUNS.invoke(command_line(), ["doctor", "--log", str(tmp_path / "x")])
    assert result.exit_code == 0
    assert "Nothing found." in result.stdout


def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--log", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "cannot be read: No such file" in result.stderr


def test_only_the_end_of_a_long_log_is_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text(HEADS + "x" * 1000 + "\n")
    monkeypatch.setattr(doctor_command, "_LOG_BYTES", 1000)
    assert RUNS.invoke(command_line(), ["doctor", "--log", str(log)]).exit_code == 0


def test_json_has_the_same(log: Path) -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--log", str(log), "--json"])
    (finding,) = json.loads(result.stdout)[f"log {log}"]["findings"]
    assert finding["sign"] == "heads not divisible"
    assert finding["kind"] == "parallel"
    assert finding["facts"]["heads"] == "4"


def test_what_the_machine_knows_stands_beside_the_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text(OOM)
    monkeypatch.setattr(looking, "who_holds", lambda *_: "memory is held now by python (process 7)")
    said = RUNS.invoke(command_line(), ["doctor", "--log", str(log)]).stdout
    assert f"seen  {OOM.strip()} [memory is held now by python (process 7)]" in said


def test_a_client_s_log_is_answered_with_what_this_machine_shows(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    log.write_text(f"base_url=http://localhost:{port}/v1\nopenai.APIConnectionError: Connection error.\n")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    result = RUNS.invoke(command_line(), ["doctor", "--log", str(log)])
    assert result.exit_code == 1
    assert "! A client did not reach its server." in result.stdout
    assert f"nobody listens on port {port} here" in result.stdout


def test_a_proxy_before_a_server_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    said = RUNS.invoke(command_line(), ["doctor", "--url", f"http://127.0.0.1:{free_port()}"]).stdout
    assert "! A client of this environment asks the proxy proxy:3128 for 127.0.0.1" in said
    assert "Nothing answers" in said


def test_the_machine_and_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "judge", lambda _: iter(()))
    result = RUNS.invoke(command_line(), ["doctor", "--port", str(free_port())])
    assert result.exit_code == 0, result.stdout
    assert "main memory" in result.stdout
    result = RUNS.invoke(command_line(), ["doctor", str(tmp_path)])
    assert result.exit_code == 1
    assert "config.json" in result.stdout


def test_a_finding_about_the_machine_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "judge", lambda _: iter([Diagnosis("It is on fire.", "Put it out.")]))
    result = RUNS.invoke(command_line(), ["doctor"])
    assert result.exit_code == 1
    assert "! It is on fire.\n    do    Put it out.\n" in result.stdout


def test_a_server_that_is_not_there() -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--url", f"http://127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "Nothing answers" in result.stdout
    assert "main memory" not in result.stdout


def test_the_table_it_prints_is_the_one_of_the_page() -> None:
    printed = RUNS.invoke(command_line(), ["doctor", "--table"]).stdout
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    assert printed.strip()
    assert printed.strip() in page
    for sign in SIGNS:
        assert f"| {sign.name} | `" in printed


@pytest.mark.parametrize("option", ["--api-key", "--admin-key"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(option: str) -> None:
    result = RUNS.invoke(command_line(), ["doctor", "--url", "http://127.0.0.1:1", option, "sec\nret"])
    assert result.exit_code == 2
    assert f"{option}: expected a key of one line" in result.output
    assert "ret" not in result.output
