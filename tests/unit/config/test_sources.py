import json

import pytest

from gateway.config.errors import ConfigurationError
from gateway.config.secrets import redacted
from gateway.config.settings import Settings
from gateway.config.sources import Sources, load, read_secret

ENDPOINT = {"models": [{"endpoints": [{"url": "http://127.0.0.1:8000"}]}]}


def written(tmp_path, text):
    file = tmp_path / "kvgate.yaml"
    file.write_text(text)
    return file


def fault(flags=None, file=None, environ=None):
    with pytest.raises(ConfigurationError) as refused:
        load(flags or {}, file, environ or {})
    return str(refused.value)


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path):
    file = written(tmp_path, "server: {port: 1, host: file, body_timeout: 7}\nhealth: {interval: 9}\n")
    environ = {"KVGATE_SERVER__PORT": "2", "KVGATE_SERVER__HOST": "environment"}
    settings = load({"server": {"port": 3}}, file, environ)
    assert (settings.server.port, settings.server.host, settings.server.body_timeout) == (3, "environment", 7)
    assert (settings.health.interval, settings.health.timeout) == (9, 5.0)


def test_the_environment_may_name_the_file_and_hold_nested_values(tmp_path):
    file = written(tmp_path, "log: {level: debug}\n")
    environ = {
        "KVGATE_CONFIG": str(file),
        "KVGATE_MODELS": json.dumps(ENDPOINT["models"]),
        "KVGATE_ADMISSION__QUEUE__TTL": "5",
        "KVGATE_AUTH__ADMIN_KEY": "s3cret",
        "KVGATE_CACHE": "/tmp/x",  # noqa: S108  # not a setting
        "PATH": "/bin",
    }
    settings = load({}, None, environ)
    assert settings.log.level == "debug"
    assert str(settings.models[0].endpoints[0].url) == "http://127.0.0.1:8000/"
    assert settings.admission.queue.ttl == 5
    assert settings.auth.admin_key.get_secret_value() == "s3cret"


def test_every_default_is_a_valid_setting():
    assert load({}, None, {}) == Settings()


@pytest.mark.parametrize(
    ("text", "key", "value", "expected"),
    [
        ("server: {port: 99999}", "server.port", "99999", "less than or equal to 65535"),
        ("server: {port: many}", "server.port", "'many'", "expected a whole number, as 8080"),
        ("server: [1]", "server", "", "expected keys and values, as {host: 0.0.0.0}"),
        ("log: {access: maybe}", "log.access", "'maybe'", "expected true or false, as true"),
        ("auth: {keys: {a: b}}", "auth.keys", "", "a list, as [{name: alice, key_file: /run/secrets/alice}]"),
        ("admission: {kv_high: 90%}", "admission.kv_high", "'90%'", "expected a number, as 0.9"),
        ("admission: {bands: [1]}", "admission.bands", "", "expected keys and values, as {1: {ttft_target: 30}}"),
        ("admission: {mode: off}", "admission.mode", "False", "a bare on, off, yes or no means true or false"),
        ("models: ['http://h:1']", "models[0]", "'http://h:1'", "as {endpoints: [{url: 'http://127.0.0.1:8000'}]}"),
        ("models: [{endpoints: 'http://h'}]", "models[0].endpoints", "", "a list, as [{url: 'http://127.0.0.1:8000'}]"),
        ("models: [{endpoints: ['http://h']}]", "models[0].endpoints[0]", "", "as {url: 'http://127.0.0.1:8000'}"),
        ("models: [{engine: m}]", "models[0].engine", "'m'", "expected keys and values, as {model: owner/name}"),
        ("models: [{engine: {model: 7}}]", "models[0].engine.model", "7", "expected text, in quotes"),
        (
            "models: [{engine: {model: m, args: --max-model-len 8}}]",
            "models[0].engine.args",
            "'--max-model-len 8'",
            "expected a list, as [--max-model-len, 2048]",
        ),
        (
            "models: [{engine: {model: m, args: [--max-model-len 8]}}]",
            "models[0].engine.args",
            "",
            "'--max-model-len 8' is two words: write [--max-model-len, 8]",
        ),
        (
            "models: [{engine: {model: m, args: [true]}}]",
            "models[0].engine.args",
            "",
            "`true` and `false` go after a switch, as [--enable-prefix-caching, false]",
        ),
        ("models: [{endpoints: [{url: 'h:1'}]}]", "models[0].endpoints[0].url", "'h:1'", "its scheme, as http://h:1"),
        (
            "models: [{endpoints: [{url: 'http://h:1/v1/chat/completions'}]}]",
            "models[0].endpoints[0].url",
            "'http://h:1/v1/chat/completions'",
            "expected the base URL, http://h:1: kvgate adds",
        ),
        ("admission: {mode: off}", "admission.mode", "False", "'enforce' or 'observe'"),
        ("admission: {kv_high: 1.5}", "admission.kv_high", "1.5", "less than or equal to 1"),
        ("admission: {ttft_target: 0}", "admission.ttft_target", "0", "greater than 0"),
        ("admission: {bands: {1: {reserved: 1}}}", "admission.bands[1].reserved", "1", "less than 1"),
        ("health: {interval: 0}", "health.interval", "0", "greater than 0"),
        ("health: {interval: .inf}", "health.interval", "inf", "finite"),
        ("models: [{endpoints: [{url: nowhere}]}]", "models[0].endpoints[0].url", "'nowhere'", "URL"),
        ("models: [{}]", "models[0]", "", "`endpoints`, `discover` or an `engine`"),
        ("admission: {kv_low: 0.95}", "admission", "", "kv_low (0.95) must be below kv_high (0.9)"),
        ("server: {prot: 1}", "server.prot", "", "did you mean `port`"),
        ("sever: {port: 1}", "sever", "", "did you mean `server`"),
        (
            "models: [{engine: {model: m, replicas: 2, gpus: [[0]]}}]",
            "models[0].engine",
            "",
            "`gpus` names GPUs for 1 replicas, and there are 2",
        ),
        ("models: [{engine: {replicas: 2}}]", "models[0].engine.model", "", "missing"),
        ("models: [{endpoints: [{url: 'http://h?k=1'}]}]", "models[0].endpoints[0].url", "", "without `?` and `#`"),
        ("models: [{endpoints: [{url: 'https://gw/a'}, {url: 'https://gw/b'}]}]", "models", "", "address: gw"),
        ("models: [{endpoints: [{url: 'http://h:1'}]}, {endpoints: [{url: 'http://h:1/'}]}]", "models", "", "h:1"),
        (
            "models: [{endpoints: [{url: 'http://h', api_key: k, api_key_file: /k}]}]",
            "models[0].endpoints[0]",
            "",
            "at most one of `api_key` and `api_key_file`",
        ),
        ("auth: {admin_key: k, admin_key_file: /k}", "auth", "", "at most one of `admin_key` and `admin_key_file`"),
    ],
)
def test_a_bad_value_is_named_with_its_key_its_place_and_what_was_expected(tmp_path, text, key, value, expected):
    file = written(tmp_path, text)
    said = fault(file=file)
    assert said.startswith(key)
    assert str(file) in said
    assert value in said
    assert expected in said
    assert "\n" not in said


def test_every_fault_has_its_line_and_its_source(tmp_path):
    file = written(tmp_path, "server: {port: x}\nlog: {level: loud}\n")
    said = fault(file=file, environ={"KVGATE_HEALTH__FAILURES": "0"}, flags={"server": {"admin_port": -1}})
    lines = sorted(said.splitlines())
    assert len(lines) == 4
    assert [line.split(" ")[0] for line in lines] == [
        "health.failures",
        "log.level",
        "server.admin_port",
        "server.port",
    ]
    assert "(environment)" in lines[0]
    assert "(command line)" in lines[2]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"KVGATE_SEVER__PORT": "1"}, "KVGATE_SEVER__PORT (environment): unknown key; did you mean `server`?"),
        (
            {"KVGATE_MODELS": "not json"},
            (
                'KVGATE_MODELS (environment): expected JSON, as [{"endpoints": [{"url": "http://127.0.0.1:8000"}]}]; '
                "character 1 is not"
            ),
        ),
        (
            {"KVGATE_AUTH__KEYS": '[{"name": "a", "key": hidden}]', "KVGATE_LOG__LEVEL": "info"},
            (
                'KVGATE_AUTH__KEYS (environment): expected JSON, as [{"name": "alice", "key_file": '
                '"/run/secrets/alice"}]; character 23 is not'
            ),
        ),
    ],
)
def test_a_bad_variable_is_named(environ, said):
    assert fault(environ=environ) == said


def test_a_file_of_something_else_is_said_to_be(tmp_path):
    assert "expected keys and values, got list" in fault(file=written(tmp_path, "- 1"))


def test_a_section_of_which_nothing_is_left_is_as_by_default(tmp_path):
    assert load({}, written(tmp_path, "health:\n#  interval: 5\n"), {}) == Settings()


def test_an_empty_file_sets_nothing(tmp_path):
    assert load({}, written(tmp_path, ""), {}) == Settings()


def test_secrets_are_never_shown(tmp_path):
    text = (
        "auth: {admin_key: hidden-1, keys: [{name: a, key: hidden-2}]}\n"
        "models: [{endpoints: [{url: 'http://x', api_key: hidden-3}], engine: {model: m, env: {HF_TOKEN: hidden-4}}}]\n"
    )
    settings = load({}, written(tmp_path, text), {})
    assert "hidden" not in json.dumps(redacted(settings))
    assert "hidden" not in repr(settings)
    wrong = "auth: {keys: [{name: a, key: [hidden-5]}], admin_key: {a: hidden-6}}\n"
    assert "hidden" not in fault(file=written(tmp_path, wrong))
    numbers = "auth: {admin_key: 123456789}\nmodels: [{engine: {model: m, env: {PIN: 123456789}}}]\n"
    assert "123456789" not in fault(file=written(tmp_path, numbers))
    both = "auth: {keys: [{name: a, key: hidden-7, key_file: /x}]}"
    assert "hidden" not in fault(file=written(tmp_path, both))


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hidden@h:1",
        "http://hidden@h:1",
        "htp://user:hid/hidden@h:1",
        "user:hidden@h:1",
        "http://user:hidden@h:1/v1/models",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(tmp_path, url):
    said = fault(file=written(tmp_path, f"models: [{{endpoints: [{{url: '{url}'}}]}}]"))
    assert said.startswith("models[0].endpoints[0].url = ")
    assert "***@h:1" in said
    assert "hidden" not in said


@pytest.mark.parametrize("key", ["", " \n", "two\nlines", "schl\u00fcssel"])
def test_what_is_no_key_is_refused_wherever_it_is_given(tmp_path, key):
    given = {"KVGATE_AUTH__ADMIN_KEY": key}
    assert fault(environ=given).startswith("auth.admin_key = *** (environment): expected a key")
    client = {"auth": {"keys": [{"name": "a", "key": key}]}}
    assert fault(flags=client).startswith("auth.keys[0].key = *** (command line): expected a key")
    endpoint = {"models": [{"endpoints": [{"url": "http://h", "api_key": key}]}]}
    assert fault(flags=endpoint).startswith("models[0].endpoints[0].api_key = *** (command line): expected a key")
    file = tmp_path / "key"
    file.write_text(key)
    with pytest.raises(ConfigurationError, match="key: expected a key"):
        read_secret(None, file)


def test_a_secret_comes_from_its_value_or_its_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("  in-file\n")
    settings = load({"auth": {"admin_key": "given\n"}}, None, {})
    assert read_secret(settings.auth.admin_key, file) == "given"
    assert read_secret(None, file) == "in-file"
    assert read_secret(None, None) is None
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="not text"):
        read_secret(None, file)
    with pytest.raises(ConfigurationError, match="cannot read the key"):
        read_secret(None, tmp_path / "missing")


def test_bands_may_come_from_the_environment_and_an_unknown_key_in_one_is_named():
    key = "KVGATE_ADMISSION__BANDS"
    settings = load({}, None, {key: '{"1": {"reserved": 0.2}}', "KVGATE_ADMISSION__TTFT_TARGET": "none"})
    assert settings.admission.bands[1].reserved == 0.2
    assert settings.admission.ttft_target is None
    assert "did you mean `reserved`" in fault(environ={key: '{"1": {"reservd": 0.2}}'})


def test_what_is_set_for_now_goes_before_all_else_and_a_band_is_the_one_of_the_file(tmp_path):
    file = tmp_path / "kvgate.yaml"
    file.write_text("models: [{endpoints: [{url: http://a:1}]}]\nadmission: {bands: {2: {reserved: 0.1}}}")
    sources = Sources({"admission": {"kv_high": 0.85}}, file)
    assert sources.has_file
    changes = {"admission": {"kv_high": 0.95, "bands": {"2": {"ttft_target": 9}}}}
    admission = sources.read(changes=changes).admission
    assert (admission.kv_high, admission.bands[2].reserved, admission.bands[2].ttft_target) == (0.95, 0.1, 9)
    assert sources.read().admission.kv_high == 0.85
    file.write_text("")
    with pytest.raises(ConfigurationError, match="nothing to serve"):
        sources.read()


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        ({"redis": "redis://u:hidden@h:port"}, "tier.redis = *** (command line): expected HOST or HOST:PORT"),
        ({"redis": "redis://u:hidden@h"}, "tier (command line): a tier needs `advertise` and `key_file`, too"),
        ({"advertise": "h:1", "key_file": "/k"}, "tier (command line): a tier needs `redis`, too"),
        ({"advertise": "h"}, "tier.advertise = 'h' (command line): expected HOST:PORT, as 10.0.0.7:8500"),
        ({"advertise": "0.0.0.0:1"}, "expected the address of this machine as the others reach it"),
        ({"fallback_share": 0}, "tier.fallback_share = 0 (command line): "),
    ],
)
def test_what_is_wrong_with_a_tier_is_said_without_a_password(tier, says):
    said = fault(flags={"tier": tier})
    assert says in said
    assert "hidden" not in said
