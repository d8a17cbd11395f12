"""Our prompt token counts against those of a real vLLM: `usage.prompt_tokens` of requests that it really served."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.tokens import local_count
from gateway.tokens.count import Source
from gateway.tokens.counter import ModelCounter
from gateway.tokens.engine_count import EngineCounter, Target
from gateway.tokens.engine_work import EngineCall, engine_work
from gateway.tokens.fast_tokenizer import FastTokenizer
from gateway.tokens.features import Feature
from gateway.tokens.loading import Tokenizers
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.pool import CountingPool
from gateway.tokens.probes import Probe, probes
from gateway.tokens.render import Renderer, TokenizerSource, cut
from gateway.wire.request import Api, InvalidRequestError, parse
from gateway.wire.stream import read_body
from gateway.wire.token_ids import IdsField, with_ids
from tests.integration.counting import target_at
from tests.integration.parity.cases import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Body, user
from tests.integration.parity.model import TEMPLATES, two_templates_model
from tests.integration.parity.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.engine

MODEL = "parity"
MAX_MODEL_LEN = 2048
OWN = "own"
"""The model's own templates: one for requests without tools, one for requests with."""
ROUTES = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.MESSAGES: "/v1/messages",
    Api.RESPONSES: "/v1/responses",
}
JSON = {"content-type": "application/json"}
LENGTHS: dict[Api, Body] = {
    Api.CHAT: {"max_tokens": 1},
    Api.COMPLETIONS: {"max_tokens": 1},
    Api.MESSAGES: {"max_tokens": 1},
    Api.RESPONSES: {"max_output_tokens": 1},
}


@dataclass(frozen=True)
class Cell:
    """One request under one template."""

    api: Api
    template: str
    case: str

    @property
    def body(self) -> bytes:
        cases = {Api.CHAT: CHAT, Api.COMPLETIONS: COMPLETIONS, Api.MESSAGES: MESSAGES, Api.RESPONSES: RESPONSES}
        return json.dumps({"model": MODEL} | LENGTHS[self.api] | cases[self.api][self.case]).encode()


Counts = dict[Cell, int | str]
"""Tokens, or a word for why there is no number: `refused`, or `engine` where we leave the counting to it."""


@pytest.fixture(scope="session")
def model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_templates_model(demo_model, tmp_path_factory.mktemp("parity-model"))


@pytest.fixture(scope="session")
def engine(vllm: Any, model: Path) -> Iterator[str]:
    """URL of a vLLM that serves the model and takes a template from a request."""
    server = vllm(
        model=model,
        served_name=MODEL,
        args={
            "--load-format": "dummy",
            "--max-model-len": str(MAX_MODEL_LEN),
            "--trust-request-chat-template": None,
            "--enable-auto-tool-choice": None,
            "--tool-call-parser": "hermes",
        },
    )
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def templates(engine_python: Path) -> dict[str, str | None]:
    """Templates by family: the model's own, ours, and those that vLLM's package brings."""
    find = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    package = subprocess.run([engine_python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    shipped = sorted(Path(package).rglob("*.jinja"))
    assert len(shipped) >= 5, f"no templates found in {package}"
    ours = sorted(TEMPLATES.glob("*.jinja"))
    return {OWN: None} | {path.stem: path.read_text() for path in [*ours, *shipped]}


@pytest.fixture(scope="session")
def cells(templates: Mapping[str, str | None]) -> list[Cell]:
    chats = [Cell(Api.CHAT, template, case) for template in templates for case in CHAT]
    others = {Api.COMPLETIONS: COMPLETIONS, Api.MESSAGES: MESSAGES, Api.RESPONSES: RESPONSES}
    own = [Cell(api, OWN, case) for api, cases in others.items() for case in cases]
    return chats + own + [Cell(Api.RESPONSES, "dump", case) for case in RESPONSES]


@pytest.fixture(scope="session")
def answers(engine: str, templates: Mapping[str, str | None], cells: list[Cell]) -> dict[Cell, bytes | None]:
    """The engine's answer to each cell, with the ids of its prompt where the API has them; None for a refusal."""
    with httpx.Client(base_url=engine, timeout=600) as client, ThreadPoolExecutor(8) as pool:

        def answered(cell: Cell) -> bytes | None:
            fields = json.loads(cell.body) | ({"return_token_ids": True} if cell.api is Api.CHAT else {})
            return answer(client, cell.api, json.dumps(fields).encode(), templates[cell.template])

        return dict(zip(cells, pool.map(answered, cells), strict=True))


@pytest.fixture(scope="session")
def reference(answers: Mapping[Cell, bytes | None]) -> Counts:
    """What the engine reports for each cell, having generated a token for it."""
    return {cell: "refused" if body is None else prompt_tokens(cell.api, body) for cell, body in answers.items()}


@pytest.fixture(scope="session")
def renderer_of(model: Path, templates: Mapping[str, str | None]) -> dict[str, Renderer]:
    """A renderer for each template, all with one tokenizer: loading one for each takes too long."""
    tokenizer = FastTokenizer(model)
    return {name: Renderer(tokenizer, template) for name, template in templates.items()}


@pytest.fixture
def renderers(renderer_of: Mapping[str, Renderer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the counter find the renderer of a template under its name, and cut each text wherever it may."""
    monkeypatch.setattr("gateway.tokens.pieces.PIECE", 1)
    monkeypatch.setattr("gateway.tokens.render.PIECE", 1)
    monkeypatch.setattr(local_count, "renderer", lambda source, _files: renderer_of[source.name])


def answer(client: httpx.Client, api: Api, body: bytes, template: str | None) -> bytes | None:
    """The engine's answer to a request; None if it refuses it."""
    response = client.post(ROUTES[api], content=_with_template(body, template, api), headers=JSON)
    if response.status_code in (400, 422):
        return None
    assert response.status_code == 200, f"{response.status_code} {response.text} for {body!r}"
    return response.content


def prompt_tokens(api: Api, body: bytes) -> int:
    """The prompt tokens that an answer reports."""
    usage = read_body(api, body).usage
    assert usage is not None
    return usage.prompt_tokens


def local(cell: Cell) -> int | str:
    """The prompt tokens that we count."""
    try:
        # An empty prompt has no tokens, and no engine takes one: some templates print nothing of a text.
        return sum(count_body(TokenizerSource(cell.template), cell.api, cell.body, MAX_MODEL_LEN).prompts) or "refused"
    except InvalidRequestError:
        return "refused"
    except (NeedsEngineError, NotCountableError):
        return "engine"


def wrong(reference: Counts) -> dict[Cell, tuple[int | str, int | str]]:
    """Cells that we count otherwise than the engine; leaving the count to it is never wrong."""
    ours = {cell: local(cell) for cell in reference}
    return {cell: (ours[cell], tokens) for cell, tokens in reference.items() if ours[cell] not in ("engine", tokens)}


def _with_template(body: bytes, template: str | None, api: Api = Api.CHAT) -> bytes:
    if template is None:
        return body
    fields: Body = json.loads(body)
    if api is Api.RESPONSES:  # it has no field for a template, and takes it as a variable; as parts it gives it nothing
        return json.dumps(fields | {"chat_template_kwargs": {"chat_template": template}}).encode()
    return json.dumps(fields | {"chat_template": template}).encode()


@pytest.mark.usefixtures("renderers")
def test_every_count_of_the_matrix_equals_the_engines(reference: Counts) -> None:
    ours = {cell: local(cell) for cell in reference}
    by_number = sum(isinstance(count, int) for count in ours.values())
    print(f"{len(reference)} cells, {by_number} counted here; {Counter(c.api.value for c in reference)}")
    assert wrong(reference) == {}
    assert by_number >= 300


@pytest.mark.usefixtures("renderers")
def test_the_ids_that_would_be_handed_over_are_the_engines(answers: Mapping[Cell, bytes | None]) -> None:
    compared = 0
    for cell, body in answers.items():
        if cell.api is not Api.CHAT or body is None or not isinstance(local(cell), int):
            continue
        counted = count_body(TokenizerSource(cell.template), cell.api, cell.body, MAX_MODEL_LEN, ids_from=1)
        if counted.ids:  # not of a prompt that is cut
            assert json.loads(counted.ids) == json.loads(body)["prompt_token_ids"], cell
            compared += 1
    assert compared >= 300


@pytest.mark.usefixtures("renderers")
def test_the_ids_that_the_counting_route_lists_of_the_probes_are_ours(
    engine: str, templates: Mapping[str, str | None]
) -> None:
    """Where the counts are equal, other ids mean another tokenizer or template, and never another route."""
    asked = [(name, probe) for name in templates for probe in probes(MODEL) if probe.api is Api.CHAT]
    with httpx.Client(base_url=engine, timeout=600) as client, ThreadPoolExecutor(8) as pool:

        def listed(of: tuple[str, Probe]) -> list[int] | None:
            (call,) = engine_work(Api.CHAT, of[1].body, MAX_MODEL_LEN).prompts
            assert isinstance(call, EngineCall)
            answer = client.post(call.path, content=_with_template(call.body, templates[of[0]]), headers=JSON)
            ids: list[int] | None = answer.json().get("tokens")
            return ids

        theirs = dict(zip(asked, pool.map(listed, asked), strict=True))
    compared = 0
    for (name, probe), there in theirs.items():
        try:
            counted = count_body(TokenizerSource(name), Api.CHAT, probe.body, MAX_MODEL_LEN, ids_from=0)
        except (InvalidRequestError, NeedsEngineError, NotCountableError):
            continue
        if there is not None and counted.ids and counted.prompts == (len(there),):
            assert json.loads(counted.ids) == there, (name, probe.name)
            compared += 1
    assert compared >= 500


async def test_the_engine_takes_ids_in_place_of_the_messages(engine: str, model: Path) -> None:
    async with counter_of(engine, TokenizerSource(str(model)), hand_over_from=1) as (counter, target):
        await counter.verify(target)
        field = counter.ids_field(target.url)
        assert field is IdsField.TRANSFER
        asked, other = [
            {"model": MODEL, "max_tokens": 16, "temperature": 0, "messages": [user(text)]}
            for text in ("Count to ten, please.", "The other one.")
        ]
        count = await counter.count(parse(Api.CHAT, json.dumps(asked).encode()), flow="", max_model_len=MAX_MODEL_LEN)
        shown = {"return_prompt_text": True}
        texts = [json.dumps(fields).encode() for fields in (asked, asked | shown)]
        ids = [with_ids(json.dumps(fields).encode(), field, count.ids) for fields in (other, other | shown)]
        async with httpx.AsyncClient(timeout=60) as client:
            by_text, shown_by_text, by_ids, shown_by_ids = [
                (await client.post(f"{engine}/v1/chat/completions", content=body, headers=JSON)).json()
                for body in [*texts, *ids]
            ]
        assert by_ids["choices"][0]["message"] == by_text["choices"][0]["message"]
        assert by_ids["usage"] | {"prompt_tokens_details": None} == by_text["usage"] | {"prompt_tokens_details": None}
        assert "Count to ten" in shown_by_text["prompt_text"]
        assert shown_by_ids.get("prompt_text") is None  # why such a request goes without ids


@pytest.mark.usefixtures("renderers")
def test_only_what_the_engine_refuses_or_odd_requests_are_left_to_it(reference: Counts) -> None:
    left = {cell.case for cell, count in reference.items() if isinstance(count, int) and local(cell) == "engine"}
    assert left <= {"x no tools", "thinking off", "inline system"}


def test_the_engines_own_counts_equal_what_it_serves(
    engine: str, templates: Mapping[str, str | None], reference: Counts
) -> None:
    """What falls to the engine is asked of it in a form that means the same prompt."""
    cells = [cell for cell, count in reference.items() if isinstance(count, int)]
    with httpx.Client(base_url=engine, timeout=600) as client, ThreadPoolExecutor(8) as pool:

        def asked(cell: Cell) -> int | str:
            work = engine_work(cell.api, cell.body, MAX_MODEL_LEN)
            if not work.exact:
                return reference[cell]
            total = 0
            for prompt in work.prompts:
                if isinstance(prompt, EngineCall):
                    content = _with_template(prompt.body, templates[cell.template])
                    answer = client.post(prompt.path, content=content, headers=JSON)
                    assert answer.status_code == 200, f"{cell}: {answer.text}"
                    prompt = answer.json().get("count", answer.json().get("input_tokens"))  # noqa: PLW2901
                total += cut(prompt, work.encoding, MAX_MODEL_LEN)
            return total

        counts = dict(zip(cells, pool.map(asked, cells), strict=True))
    assert {cell: (n, reference[cell]) for cell, n in counts.items() if n != reference[cell]} == {}


@pytest.mark.usefixtures("renderers")
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_matrix_notices_a_counter_that_is_wrong_in_one_way(
    mutant: Mutant, reference: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert wrong(reference)


@asynccontextmanager
async def counter_of(
    engine: str, source: TokenizerSource, hand_over_from: int | None = None
) -> AsyncIterator[tuple[ModelCounter, Target]]:
    pool = CountingPool(threads=1, processes=1, process_bytes=4096, max_pending_bytes=10**8)
    async with target_at(engine) as target:
        asked = EngineCounter(lambda: (target,), lambda: 60)
        counter = ModelCounter(
            *(MODEL, source, pool, Tokenizers(pool), asked),
            up=lambda: (target.url,),
            on_drift=pytest.fail,
            on_switch=lambda _: None,
            on_return=pytest.fail,
            on_refusal=pytest.fail,
            clock=time.monotonic,
            chance=lambda: 1.0,
            hand_over_from=lambda: hand_over_from,
        )
        await counter.start()
        try:
            yield counter, target
        finally:
            await pool.close()


async def test_an_engine_of_the_same_template_is_found_equal_and_counted_here(engine: str, model: Path) -> None:
    async with counter_of(engine, TokenizerSource(str(model))) as (counter, target):
        report = await counter.verify(target)
        assert report is not None
        assert report.mismatches == ()
        assert report.unverified == frozenset()
        assert not report.excludes_unused
        assert report.compared >= 20
        assert report.other_ids == ()
        assert report.same_ids >= 15
        await _counts_what_is_served(engine, counter, Source.LOCAL)


@pytest.mark.parametrize("template", ["chatml", "qwen3_thinking"])
async def test_an_engine_of_another_template_is_found_out_and_counts_for_itself(
    engine: str, model: Path, template: str
) -> None:
    text = (TEMPLATES / f"{template}.jinja").read_text()
    async with counter_of(engine, TokenizerSource(str(model), chat_template=text)) as (counter, target):
        report = await counter.verify(target)
        assert report is not None
        assert Feature.PROMPT in report.distrusted(Api.CHAT)
        assert not report.distrusted(Api.COMPLETIONS)
        await _counts_what_is_served(engine, counter, Source.ENGINE)


async def _counts_what_is_served(engine: str, counter: ModelCounter, source: Source) -> None:
    """Small in a thread, large in a process, both settled against the usage of the answer."""
    for text in ("What is the weather?", "one two three four " * 400):
        request = parse(Api.CHAT, json.dumps({"model": MODEL, "max_tokens": 1, "messages": [user(text)]}).encode())
        count = await counter.count(request, flow="test", max_model_len=MAX_MODEL_LEN)
        assert count.source is source
        async with httpx.AsyncClient(timeout=600) as client:
            response = await client.post(engine + ROUTES[Api.CHAT], content=request.body, headers=JSON)
        usage = read_body(Api.CHAT, response.content).usage
        assert usage is not None
        counter.settle(count, usage.prompt_tokens)
