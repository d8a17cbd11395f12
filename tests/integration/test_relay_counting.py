"""Who counts what passes the gateway, and what it says of that."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from gateway.app import application as app
from gateway.commands.top.following import Kvgate
from gateway.endpoints import monitor
from gateway.tokens import drift
from gateway.tokens.counter import ModelCounter
from gateway.tokens.render import TokenizerSource, renderer
from tests.fakes.tokenizer import make_tokenizer
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.fakes.vllm.model_tokenizer import model_tokenizer
from tests.integration.relaying import gateway, until

LINES = {"access": True, "format": "json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def counted(output: str) -> list[str]:
    """Who counted, by the access lines."""
    return [json.loads(line)["counted"] for line in output.splitlines() if '"event":"request"' in line]


async def test_the_first_answer_is_counted_here_where_the_tokenizer_is_known_before_the_endpoint_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer(TokenizerSource(str(folder)))  # it takes longer to load than the fake to come up: here it is no race
    async with FakeVllm(FakeSettings(root=str(folder)), tokenize=model_tokenizer(folder)) as fake:
        await fake.refuse()
        models = [{"endpoints": [{"url": fake.url}], "tokenizer": str(folder)}]
        async with gateway(fake, ready=False, models=models, log=LINES) as kvgate:
            waiting = asyncio.create_task(kvgate.post())
            await until(lambda: kvgate.application.endpoints[0].reason)
            await fake.listen()
            answer = await waiting
    assert counted(capsys.readouterr().err) == ["local"]
    assert answer.json()["usage"]["prompt_tokens"] == int(answer.headers["x-kvgate-prompt-tokens"])


async def test_an_endpoint_that_names_a_model_is_counted_with_that_ones_tokenizer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeVllm(FakeSettings(root=str(folder)), tokenize=model_tokenizer(folder))
    async with fake, gateway(fake, models=[{"endpoints": [{"url": fake.url}]}], log=LINES) as kvgate:

        async def loaded() -> bool:
            return bool((await kvgate.state())["counting"][0]["mode"] == "local")

        await until(loaded)
        await kvgate.post()
    assert counted(capsys.readouterr().err) == ["local"]


async def test_drift_ends_once_the_engine_counts_as_we_do_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_RECHECK", 0.01)
    monkeypatch.setattr(drift, "FIRST_WAIT", 0.01)
    fake = FakeVllm(FakeSettings(root=str(folder)), tokenize=model_tokenizer(folder))
    async with fake, gateway(fake, models=[{"endpoints": [{"url": fake.url}]}]) as kvgate:

        async def counted_here() -> bool:
            return bool((await kvgate.state())["counting"][0]["mode"] == "local")

        async def compared() -> bool:
            """The fake renders some of the probes otherwise, which is told once all are compared."""
            return bool((await kvgate.state())["counting"][0]["reason"])

        await until(compared)
        assert await counted_here()
        right = fake.tokenize
        fake.tokenize = lambda path, asked: [[0, *ids] for ids in right(path, asked)]
        for _ in range(drift.LIMIT):
            await kvgate.post()
        assert not await counted_here()
        async with Kvgate(f"http://127.0.0.1:{kvgate.port}") as followed:
            assert [sign.key for sign in (await followed.picture()).signs] == ["drift fake"]
        fake.tokenize = right
        await until(counted_here)


async def test_an_engine_upgraded_to_another_model_of_the_same_name_is_counted_with_that_ones_tokenizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_RECHECK", 0.01)
    monkeypatch.setattr(drift, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(monitor, "IDENTITY_INTERVAL", 0.1)
    other = make_tokenizer(tmp_path)
    settings = json.loads((other / "tokenizer_config.json").read_text())
    settings["chat_template"] = f"Be brief.{settings['chat_template']}"
    (other / "tokenizer_config.json").write_text(json.dumps(settings))
    fake = FakeVllm(FakeSettings(root=str(folder)), tokenize=model_tokenizer(folder))
    async with fake, gateway(fake, models=[{"endpoints": [{"url": fake.url}]}]) as kvgate:

        async def compared() -> bool:
            """The fake renders some of the probes otherwise, which is told once all are compared."""
            counting = (await kvgate.state())["counting"][0]
            return bool(counting["mode"] == "local" and counting["reason"])

        await until(compared)
        await fake.close()
        async with FakeVllm(FakeSettings(root=str(other)), tokenize=model_tokenizer(other)) as upgraded:
            await upgraded.refuse()
            await upgraded.listen(fake.port)

            async def counted_here() -> bool:
                answer = await kvgate.post()
                told = answer.headers["x-kvgate-prompt-tokens"]
                right = answer.json()["usage"]["prompt_tokens"] == int(told)
                return right and await compared()

            await until(counted_here)
            kept = kvgate.application._directory.pools["fake"].counter
            await until(lambda: kept.source == TokenizerSource(str(other)))


async def test_a_model_whose_engine_is_slow_to_count_keeps_no_other_from_being_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: Counter[str] = Counter()

    async def recheck(counter: ModelCounter) -> None:
        checked[counter._model] += 1
        if counter._model == "slow":
            await asyncio.Event().wait()

    monkeypatch.setattr(app, "_RECHECK", 0.01)
    monkeypatch.setattr(ModelCounter, "recheck", recheck)
    slow, quick = FakeVllm(FakeSettings(model="slow")), FakeVllm(FakeSettings(model="quick"))
    async with slow, quick:
        models = [{"endpoints": [{"url": fake.url}], "tokenizer": "/nonexistent"} for fake in (slow, quick)]
        async with gateway(slow, quick, models=models):
            await until(lambda: checked["slow"] and checked["quick"] > 2)
    assert checked["slow"] == 1


async def test_the_state_says_what_is_not_counted_here_by_whom_it_is_and_why() -> None:
    async with FakeVllm() as fake, gateway(fake) as kvgate:
        await until(lambda: kvgate.application.loaded)
        (counting,) = (await kvgate.state())["counting"]
        assert [(kind["api"], kind["feature"], kind["by"]) for kind in counting["not_here"]] == [
            (api, "prompt", "engine") for api in ("chat", "batch", "completions", "responses", "messages")
        ]
        assert "--tokenizer" in counting["reason"]
        assert {kind["reason"] for kind in counting["not_here"]} == {counting["reason"]}


async def test_a_prompt_that_only_a_dead_engine_could_count_waits_for_it_before_a_probe_finds_that_dead() -> None:
    async with FakeVllm() as fake, gateway(fake, health={"interval": 2}) as running:
        await fake.close()
        asked = asyncio.create_task(running.post())
        await asyncio.sleep(1)
        assert not asked.done()
        await fake.listen()
        assert (await asked).status_code == 200
