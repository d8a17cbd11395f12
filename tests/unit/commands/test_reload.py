from typer.testing import CliRunner

from gateway.cli import command_line


def test_the_kvgate_that_runs_is_asked_for_settings_of_now(monkeypatch):
    asked = []
    monkeypatch.setattr("gateway.commands.reload.ask", lambda request, port, say: asked.append((request, port)) or 3)
    changes = ["--set", "admission.mode=observe", "--set", "server.max_body_bytes=5"]
    assert CliRunner().invoke(command_line(), ["reload", "--port", "9", *changes]).exit_code == 3
    ((request, port),) = asked
    assert request.changes == {"admission": {"mode": "observe"}, "server": {"max_body_bytes": 5}}
    assert (request.config, port) == (None, 9)
