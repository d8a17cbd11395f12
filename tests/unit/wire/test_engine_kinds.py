import json

import pytest

from gateway.wire.engine_kinds import KINDS, LLAMA_SERVER, VLLM, is_loading, kind_of


def models(*owners: str | None) -> bytes:
    cards = [{"id": "m"} | ({} if owner is None else {"owned_by": owner}) for owner in owners]
    return json.dumps({"object": "list", "data": cards}).encode()


@pytest.mark.parametrize(
    ("owners", "kind"),
    [(("vllm",), VLLM), (("llamacpp",), LLAMA_SERVER), (("me", "llamacpp"), LLAMA_SERVER), (("me",), VLLM), ((), VLLM)],
)
def test_an_engine_is_told_by_the_owner_of_its_models(owners, kind):
    assert kind_of(models(*owners)) is kind


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"data":5}', b'{"data":[{"owned_by":7}]}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_counts_as_a_vllm(answer):
    assert kind_of(answer) is VLLM


def test_an_engine_without_an_owner_is_a_vllm():
    assert kind_of(models(None)) is VLLM


def test_an_engine_that_loads_its_model_is_not_dead():
    assert is_loading("Loading model")
    assert not is_loading("EngineCore encountered an issue.")


def test_every_kind_has_its_own_name_and_owner():
    assert len({kind.owner for kind in KINDS.values()}) == len(KINDS)
    assert all(kind.name == name for name, kind in KINDS.items())
