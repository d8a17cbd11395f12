import json
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.wire.engine_kinds import KINDS, LLAMA_SERVER, OLLAMA, SGLANG, TGI, VLLM, Meaning, meaning, owned_kind
from tests.fakes.foreign import FACTS
from tests.fakes.vllm.shapes import BUSY, DEAD

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"


def models(*owners: str | None) -> bytes:
    cards = [{"id": "m"} | ({} if owner is None else {"owned_by": owner}) for owner in owners]
    return json.dumps({"object": "list", "data": cards}).encode()


@pytest.mark.parametrize(
    ("owners", "kind"),
    [
        (("vllm",), VLLM),
        (("llamacpp",), LLAMA_SERVER),
        (("me", "llamacpp"), LLAMA_SERVER),
        (("sglang",), SGLANG),
        (("me",), None),
        (("library",), None),
        ((None,), None),
        ((), None),
    ],
)
def test_an_engine_is_told_by_the_owner_of_its_models(owners, kind):
    assert owned_kind(models(*owners)) is kind


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"data":5}', b'{"data":[{"owned_by":7}]}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_tells_no_kind(answer):
    assert owned_kind(answer) is None


@pytest.mark.parametrize(
    ("kind", "status", "message", "means"),
    [
        (VLLM, 503, BUSY.message, Meaning.BUSY),
        (VLLM, 500, BUSY.message, None),
        (VLLM, 500, DEAD.message, Meaning.DEAD),
        (VLLM, 500, f"Grammar error: Invalid type: {DEAD.message}", None),  # clients write into errors of requests
        (VLLM, 400, "This model's maximum context length is 9 tokens.", None),
        (LLAMA_SERVER, 503, "Loading model", Meaning.LOADING),
        (LLAMA_SERVER, 400, "request (9 tokens) exceeds the available context size (8 tokens)", Meaning.TOO_LONG),
        (
            LLAMA_SERVER,
            500,
            "audio input is not supported - hint: if this is unexpected, you may n...",
            Meaning.INVALID,
        ),
        (LLAMA_SERVER, 500, "Context size has been exceeded.", None),
        (TGI, 422, "Template error: Model is overloaded", None),
        (TGI, 424, "Request failed during generation: oops", Meaning.FAILED),
        (OLLAMA, 500, "server busy, please try again.", None),
    ],
)
def test_an_error_means_what_its_engine_says_by_it(kind, status, message, means):
    assert kind.meaning(status, message) is means


def test_an_error_is_understood_without_knowing_whose_it_is():
    assert meaning(503, BUSY.message) is meaning(429, "Model is overloaded") is Meaning.BUSY
    assert meaning(500, "oops") is None


def test_every_kind_can_be_recognised_and_told_from_the_others():
    owners = [kind.owner for kind in KINDS.values() if kind.owner is not None]
    assert len(set(owners)) == len(owners)
    assert all(kind.name == name for name, kind in KINDS.items())
    assert all(kind.owner is not None or kind.sign is not None for kind in KINDS.values())


def test_a_kind_is_run_here_or_faked():
    assert KINDS.keys() - FACTS.keys() == {"vllm", "llama-server"}


def test_the_table_for_people_has_each_kind_as_it_is():
    header, rows = next(
        (line, page[number + 2 :])
        for page in [PAGE.read_text().splitlines()]
        for number, (line, below) in enumerate(pairwise(page))
        if below.startswith("|---")
    )
    columns = [cell.strip() for cell in header.strip("|").split("|")][1:]
    assert columns == list(KINDS)
    table = {cells[0]: cells[1:] for row in rows if (cells := [cell.strip() for cell in row.strip("|").split("|")])}
    kinds = list(KINDS.values())
    assert table["healthy if 200 from"] == [f"`{kind.health}`" for kind in kinds]
    assert table["when the cache is full"] == [kind.kv_out.value for kind in kinds]
    assert table["a prompt over the length"] == [kind.over_length.value for kind in kinds]
    cut = {True: "cut", False: "refused", None: "asked"}
    assert table["`max_tokens` over the length"] == [cut[kind.clamps] for kind in kinds]
