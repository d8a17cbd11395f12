import pytest

from gateway.config.errors import ConfigurationError
from gateway.config.yaml_file import read_yaml, written


def fault(file):
    with pytest.raises(ConfigurationError) as refused:
        read_yaml(file)
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: [", "not valid YAML in line"),
        ("a: 2026-99-99", "not valid YAML: a value is not what it looks like: put it in quotes"),
        ("a: 1" + 5000 * "0", "not valid YAML: a value is not what it looks like: put it in quotes"),
        ("[" * 5000, "not valid YAML: nested too deeply"),
        ("server: {port: 1}\nlog: {level: debug}\nserver: {host: h}\n",
         "not valid YAML in line 3: `server` is there already, in line 1: put the two together"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_said_to_be(tmp_path, text, said):
    file = tmp_path / "kvgate.yaml"
    file.write_text(text)
    assert said in fault(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert "missing.yaml: cannot be read" in fault(tmp_path / "missing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not valid YAML" in fault(binary)


@pytest.mark.parametrize("value", [8080, "8080", [{"url": "http://h"}], {"a": True}, "of text"])
def test_what_is_written_reads_the_same(tmp_path, value):
    file = tmp_path / "kvgate.yaml"
    file.write_text(written(value))
    assert "\n" not in written(value)
    assert read_yaml(file) == value
