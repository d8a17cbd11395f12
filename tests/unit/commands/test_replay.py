import socket

from typer.testing import CliRunner

from gateway.admission.events import Tick
from gateway.cli import command_line
from gateway.runtime.failure import USAGE_ERROR
from tests.unit.record.recorded import Tape


def run(*arguments):
    return CliRunner().invoke(command_line(), ["replay", *arguments])


def test_a_replay_is_shown_on_a_loopback_address_alone(tmp_path):
    result = run(str(tmp_path / "f"), "--page", "--host", "0.0.0.0")
    assert result.exit_code == USAGE_ERROR
    assert "the page asks for no key" in result.output


def test_a_port_that_is_taken_is_named(tmp_path):
    file = Tape().tell(0, Tick()).write(tmp_path / "f")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(str(file), "--page", "--port", str(port))
    assert result.exit_code == USAGE_ERROR
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use" in result.output


def test_only_settings_of_admission_can_be_tried(tmp_path):
    result = run(str(tmp_path / "f"), "--set", "server.port=1")
    assert (result.exit_code, "expected admission.SETTING=VALUE" in result.output) == (USAGE_ERROR, True)
