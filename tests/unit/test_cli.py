import re

import pytest
from typer.testing import CliRunner

import gateway
from gateway.cli import COMMANDS, command_line
from gateway.runtime.failure import USAGE_ERROR


@pytest.fixture
def run(monkeypatch):
    """Run a command; what it would have served is kept and not served."""
    served, reloaded = [], []

    def keep(settings, sources, choices, *, verbose):
        served.append(settings)
        reloaded.append(sources.read())
        return 0

    monkeypatch.setattr("gateway.serve.command._serve", keep)

    def invoke(*arguments, env=None):
        result = CliRunner().invoke(command_line(), arguments, env=env or {})
        result.served = served[-1] if served else None
        result.reloaded = reloaded[-1] if reloaded else None
        return result

    return invoke


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_is_printed(run, asked):
    assert run(asked).stdout == f"kvgate {gateway.__version__}\n"


def test_endpoints_are_fronted(run):
    arguments = (
        "--endpoint",
        "http://a:1",
        "--endpoint",
        "http://b:2",
        "--tokenizer",
        "t",
        "--port",
        "9",
        "--chat-template",
        "{{ c }}",
    )
    result = run("serve", *arguments, "--host", "::", "--admin-port", "10")
    assert result.exit_code == 0
    (model,) = result.served.models
    assert [str(endpoint.url) for endpoint in model.endpoints] == ["http://a:1/", "http://b:2/"]
    assert (model.tokenizer, model.chat_template, model.engine) == ("t", "{{ c }}", None)
    server = result.served.server
    assert (server.host, server.port, server.admin_port) == ("::", 9, 10)


def test_events_are_recorded_where_a_flag_says(run):
    result = run("serve", "--endpoint", "http://a:1", "--event-log", "events.jsonl")
    assert str(result.served.admission.event_log) == "events.jsonl"


def test_a_tier_is_named_by_three_flags(run, tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    flags = ("--tier-redis", "redis://:hidden@h", "--tier-advertise", "h:1", "--tier-key-file", str(tmp_path / "key"))
    tier = run("serve", "--endpoint", "http://a:1", *flags).served.tier
    assert tier.redis.get_secret_value() == "redis://:hidden@h"
    assert (tier.advertise, tier.key_file) == ("h:1", tmp_path / "key")
    short = run("serve", "--endpoint", "http://a:1", *flags[:2])
    assert short.exit_code != 0
    assert "a tier needs `advertise` and `key_file`, too" in short.output
    assert "hidden" not in short.output


def test_a_model_is_launched(run):
    assert run("serve", "org/model").served.models[0].engine.model == "org/model"


def test_arguments_for_vllm_follow_two_dashes(run):
    result = run("serve", "org/model", "--port", "9", "--", "--max-model-len", "2048")
    assert result.served.models[0].engine.args == ("--max-model-len", "2048")
    assert result.served.server.port == 9


def test_engines_that_are_debugged_stay_so_after_a_reload(run):
    result = run("serve", "org/model", "--debug-engine")
    for settings in (result.served, result.reloaded):
        assert settings.models[0].engine.env["VLLM_LOGGING_LEVEL"].get_secret_value() == "DEBUG"
    assert run("serve", "org/model").reloaded.models[0].engine.env == {}


def test_a_flag_goes_before_the_environment_before_the_file(run, tmp_path):
    file = tmp_path / "kvgate.yaml"
    file.write_text("server: {port: 1, host: file}\nmodels: [{engine: {model: m}}]\n")
    env = {"KVGATE_SERVER__PORT": "2", "KVGATE_SERVER__HOST": "environment"}
    result = run("serve", "--config", str(file), "--port", "3", env=env)
    assert (result.served.server.port, result.served.server.host) == (3, "environment")
    assert result.served.models[0].engine.model == "m"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve",), "nothing to serve"),
        (("serve", "--", "--x", "1"), "need a MODEL to launch it for: kvgate serve MODEL -- --x 1"),
        (("serve", "--tokenizer", "t"), "--tokenizer goes with MODEL or --endpoint"),
        (("serve", "--chat-template", "t"), "--chat-template goes with MODEL or --endpoint"),
        (("serve", "--engine", "auto"), "--engine goes with MODEL; in a file it is `choice` of the engine"),
        (("serve", "m", "--alternative", "m.gguf"), "`alternatives` is for `choice: auto`"),
        (("serve", "m", "--engine", "best"), "models[0].engine.choice = 'best' (command line)"),
        (("serve", "--endpoint", "nowhere"), "models[0].endpoints[0].url = 'nowhere' (command line)"),
        (("serve", "m", "--port", "99999"), "server.port = 99999 (command line)"),
        (("serve", "--config", "/missing.yaml"), "/missing.yaml: cannot be read"),
        (("check-config", "/missing.yaml"), "/missing.yaml: cannot be read"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(run, arguments, said):
    result = run(*arguments)
    assert result.exit_code == USAGE_ERROR
    assert result.served is None
    (line,) = result.stderr.splitlines()
    assert line.startswith("kvgate: ")
    assert said in line
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auth: {keys: [{name: a, key_file: /no/key}]}", "auth.keys[0]: /no/key: cannot read the key: No such file"),
        ("auth: {admin_key_file: /no/key}", "auth.admin_key_file: /no/key: cannot read the key: No such file"),
        ("auth: {keys: [{name: a, key: k}, {name: b, key: k}]}", "auth.keys[1]: it is the same key as auth.keys[0]"),
        ("server: {port: 1}\nserver: {host: h}", "`server` is there already, in line 2"),
    ],
)
@pytest.mark.parametrize("command", ["check-config", "serve --config"])
def test_what_would_fail_later_is_found_when_settings_are_checked(run, tmp_path, command, text, said):
    file = tmp_path / "kvgate.yaml"
    file.write_text(f"models: [{{endpoints: [{{url: 'http://a:1'}}]}}]\n{text}")
    result = run(*command.split(), str(file))
    assert (result.exit_code, result.served) == (USAGE_ERROR, None)
    (line,) = result.stderr.splitlines()
    assert said in line


def test_the_help_names_every_command(run):
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run("--help").stdout)
    for command in ("serve", "demo", "check-config", "version"):
        assert command in plain
    assert "stdin" not in plain, "what only the supervisor starts is hidden"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_can_be_the_only_one(command):
    shown = CliRunner().invoke(command_line(command), [command, "--help"])
    assert (shown.exit_code, f" {command} " in shown.stdout) == (0, True)
