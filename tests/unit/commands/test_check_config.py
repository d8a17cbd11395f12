import yaml
from typer.testing import CliRunner

from gateway.cli import command_line
from gateway.runtime.failure import USAGE_ERROR


def run(*arguments):
    return CliRunner().invoke(command_line(), arguments)


def test_settings_are_checked_and_what_differs_is_shown_without_secrets(tmp_path):
    file = tmp_path / "kvgate.yaml"
    file.write_text("auth: {admin_key: hidden}\nmodels: [{endpoints: [{url: 'http://a:1'}]}]\nlog: {level: info}\n")
    result = run("check-config", str(file))
    assert result.exit_code == 0
    models = [{"endpoints": [{"url": "http://a:1/"}]}]
    assert yaml.safe_load(result.stdout) == {"models": models, "auth": {"admin_key": "**********"}}
    engine = "{model: m, on_demand: true, gpus: [[0]]}"
    file.write_text(f"models: [{{name: a, engine: {engine}}}, {{name: b, engine: {engine}}}]\n")
    first, *_ = run("check-config", str(file)).stdout.splitlines()
    assert first == "# a, b: take turns on GPU 0, of which they would take 184% at once"
    file.write_text("auth: {admin_key: hidden}\nmodels: [{endpoints: [{url: 'http://a:1'}]}]\n")
    shown = yaml.safe_load(run("check-config", "--all", str(file)).stdout)
    assert shown["admission"]["kv_high"] == 0.9
    assert shown["auth"]["admin_key"] == "**********"


def test_settings_without_a_model_are_no_good_and_one_is_shown():
    result = run("check-config")
    assert result.exit_code == USAGE_ERROR
    assert (
        "models: there is nothing to serve; write one, as [{endpoints: [{url: http://127.0.0.1:8000}]}]"
        in result.stderr
    )


def test_files_of_an_endpoint_are_looked_at(tmp_path):
    file = tmp_path / "kvgate.yaml"
    file.write_text(
        "models: [{endpoints: [{url: 'http://a:1', tls: {ca_file: /no/ca}}, {url: 'http://b', api_key_file: /no}]}]"
    )
    result = run("check-config", str(file))
    first, second = result.stderr.splitlines()
    assert first.startswith("kvgate: endpoint a:1: tls.ca_file: /no/ca is no readable CA bundle")
    assert second.startswith("kvgate: endpoint b: /no: cannot read the key: No such file")
