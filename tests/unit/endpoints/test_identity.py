import json

import pytest

from gateway.endpoints.identity import Identity, UnidentifiedError, identify, lora_paths


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


def test_adapters_have_paths_where_the_engine_tells_them():
    cards = [{"id": "m", "root": "/m"}, {"id": "a", "root": "/a", "parent": "m"}, {"id": "b", "parent": "m"}]
    assert lora_paths(json.dumps({"data": cards}).encode()) == {"a": "/a", "b": None}
    assert lora_paths(b"[") == {}


def test_the_shortest_length_is_kept():
    assert identify(models(card("a", length=2048), card("b", length=1024)), None).max_model_len == 1024


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
