import pytest

from gateway.commands.changes import changes


def test_settings_are_read_as_yaml_and_nested_by_their_names():
    given = ["admission.mode=observe", "admission.queue.max_requests=5", "server.port=80"]
    assert changes(given) == {"admission": {"mode": "observe", "queue": {"max_requests": 5}}, "server": {"port": 80}}
    assert changes([]) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["mode=observe"], "--set mode=observe: expected SECTION.SETTING=VALUE"),
        (["admission.mode"], "--set admission.mode: expected SECTION.SETTING=VALUE"),
        (["admission.=1"], "--set admission.=1: expected SECTION.SETTING=VALUE"),
        (["admission.mode=["], "--set admission.mode=[: the value cannot be read"),
        (["a.b=1", "a.b.c=2"], "--set a.b.c=2: b was set to a value before"),
    ],
)
def test_what_cannot_be_one_is_told(given, said, capsys):
    with pytest.raises(SystemExit):
        changes(given)
    assert capsys.readouterr().err == f"kvgate: {said}\n"


def test_some_commands_take_those_of_one_section(capsys):
    assert changes(["admission.kv_high=0.95"], "admission") == {"admission": {"kv_high": 0.95}}
    with pytest.raises(SystemExit):
        changes(["server.port=1"], "admission")
    assert "expected admission.SETTING=VALUE" in capsys.readouterr().err
