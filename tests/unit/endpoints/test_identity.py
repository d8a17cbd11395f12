import json

import pytest

from gateway.endpoints.identity import Identity, UnidentifiedError, identify


def card(name, parent=None, length=1024, **extra):
    return {
        "id": name,
        "object": "model",
        "created": 1795197814,
        "owned_by": "vllm",
        "root": f"org/{name}",
        "parent": parent,
        "max_model_len": length,
        "permission": [{"id": "modelperm-1", "organization": "*"}],
        **extra,
    }


def models(*cards):
    return json.dumps({"object": "list", "data": cards}).encode()


def test_a_base_model_its_alias_and_its_adapters():
    answer = models(card("smol"), card("demo"), card("sql-lora", parent="smol", length=None))
    assert identify(answer, b'{"version":"0.32.0"}') == Identity(
        names=("smol", "demo"), loras=("sql-lora",), root="org/smol", max_model_len=1024, version="0.32.0"
    )


def test_the_shortest_length_is_kept():
    assert identify(models(card("a", length=2048), card("b", length=1024)), None).max_model_len == 1024


@pytest.mark.parametrize(
    ("version", "clamps"),
    [
        ("0.8.5.post1", False),
        ("0.31.1", False),
        ("0.32.0", True),
        ("0.32.0rc1", True),
        ("0.33.0+cpu", True),
        ("1.0", True),
        ("dev", False),
        (None, False),
        (5000 * "9" + ".1", False),
        ("0." + 5000 * "9", False),
    ],
)
def test_engines_from_0_32_on_clamp_max_tokens(version, clamps):
    answer = None if version is None else json.dumps({"version": version}).encode()
    assert identify(models(card("m")), answer).clamps_max_tokens is clamps


@pytest.mark.parametrize("version", [None, b"", b"not found", b'{"version":32}', b"\xff", b'{"x":' + b"[" * 100_000])
def test_a_version_that_is_not_told_is_unknown(version):
    assert identify(models(card("m")), version).version is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"data":{}}',
        b'{"data":[]}',
        b'{"data":[{"id":5}]}',
        models(card("lora", parent="base")),
        models(card("m", length=None)),
        models(card("m", length=0)),
        models(card("m", length=2**31)),
        b'{"data":[{"id":"m","x":' + b"[" * 100_000,
    ],
)
def test_what_is_no_model_list_is_refused(answer):
    with pytest.raises(UnidentifiedError, match="/v1/models"):
        identify(answer, None)
