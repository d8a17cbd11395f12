"""The token ids of random requests, against those that vLLM's own renderer makes of them. No engine starts."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.tokens import local_count
from gateway.tokens.fast_tokenizer import FastTokenizer
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.render import Renderer, TokenizerSource
from gateway.wire.request import Api, InvalidRequestError
from tests.integration.parity.generator import Chats, Generator, Messages, Responses
from tests.integration.parity.model import TEMPLATES, two_templates_model

pytestmark = pytest.mark.engine

RENDERER = Path(__file__).parent / "parity" / "vllm_renderer.py"
MAX_MODEL_LEN = 2048
NAMES = ("dump", "dump_parts")
"""Templates that print all they are given."""
GENERATORS: dict[Api, Generator] = {Api.CHAT: Chats(14), Api.MESSAGES: Messages(15), Api.RESPONSES: Responses(11)}
EACH = 400
"""Requests of an API under a template."""

Ids = list[int] | str
"""Token ids, or a word for why there are none: `refused`, or `left` where we do not count."""


@dataclass(frozen=True)
class Asked:
    """A request under a template."""

    api: Api
    template: str
    body: dict[str, Any]


@pytest.fixture(scope="module")
def templates() -> dict[str, str]:
    return {name: (TEMPLATES / f"{name}.jinja").read_text() for name in NAMES}


@pytest.fixture(scope="module")
def model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_templates_model(demo_model, tmp_path_factory.mktemp("random-requests-model"))


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    return [
        Asked(api, name, {"model": "m"} | generator.request())
        for api, generator in GENERATORS.items()
        for name in NAMES
        for _ in range(EACH)
    ]


@pytest.fixture(scope="module")
def theirs(quick_python: Path, model: Path, templates: Mapping[str, str], asked: list[Asked]) -> list[Ids]:
    file = model / "templates.json"
    file.write_text(json.dumps(templates))
    argv = [quick_python, RENDERER, model, str(MAX_MODEL_LEN), file]
    lines = "".join(json.dumps(vars(one)) + "\n" for one in asked)
    run = subprocess.run(argv, input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line[2:]) for line in run.stdout.splitlines() if line.startswith("= ")]
    return ["refused" if answer is None else answer for answer in answers]


@pytest.fixture
def renderers(model: Path, templates: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the counter find the renderer of a template under its name, and cut each text wherever it may."""
    monkeypatch.setattr("gateway.tokens.pieces.PIECE", 1)
    monkeypatch.setattr("gateway.tokens.render.PIECE", 1)
    tokenizer = FastTokenizer(model)
    made = {name: Renderer(tokenizer, template) for name, template in templates.items()}
    monkeypatch.setattr(local_count, "renderer", lambda source, _files: made[source.name])


def ours(one: Asked) -> Ids:
    try:
        counted = count_body(
            TokenizerSource(one.template), one.api, json.dumps(one.body).encode(), MAX_MODEL_LEN, ids_from=0
        )
    except InvalidRequestError:
        return "refused"
    except (NeedsEngineError, NotCountableError):
        return "left"
    ids: list[int] = json.loads(counted.ids)
    assert [len(ids)] == [*counted.prompts]
    return ids


@pytest.mark.usefixtures("renderers")
@pytest.mark.parametrize("api", GENERATORS)
def test_random_requests_become_the_tokens_that_vllm_makes_of_them(
    api: Api, asked: list[Asked], theirs: list[Ids]
) -> None:
    made = [(one, ours(one), ids) for one, ids in zip(asked, theirs, strict=True) if one.api is api]
    if api is Api.RESPONSES:  # it refuses an item for what its prompt does not show, too
        made = [case for case in made if case[2] != "refused"]
    assert [case for case in made if case[1] not in ("left", case[2])] == []
    assert sum(here != "refused" and here == there for _, here, there in made) >= EACH // 2
