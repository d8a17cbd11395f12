import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.tokens import loading
from gateway.tokens.loading import Tokenizers
from gateway.tokens.pool import CountingPool
from gateway.tokens.render import TokenizerSource, TokenizerUnavailableError

SOURCE = TokenizerSource("somewhere")


@pytest.fixture
async def pool() -> AsyncIterator[CountingPool]:
    pool = CountingPool(threads=1, processes=0, process_bytes=1, max_pending_bytes=10**6)
    yield pool
    await pool.close()


async def test_a_tokenizer_is_known_to_be_loaded_once_it_is(pool: CountingPool, tokenizer_folder: Path) -> None:
    tokenizers = Tokenizers(pool)
    source = TokenizerSource(str(tokenizer_folder))
    assert tokenizers.unavailable(source)
    assert await tokenizers.load(source) == ""
    assert tokenizers.unavailable(source) == ""


async def test_who_asks_for_one_that_is_on_its_way_waits_for_that_one(
    pool: CountingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[TokenizerSource] = []
    go = threading.Event()

    def load(source: TokenizerSource) -> None:
        go.wait(120)
        loads.append(source)

    monkeypatch.setattr(loading, "load", load)
    tokenizers = Tokenizers(pool)
    impatient, patient = asyncio.create_task(tokenizers.load(SOURCE)), asyncio.create_task(tokenizers.load(SOURCE))
    await asyncio.sleep(0)
    assert tokenizers.unavailable(SOURCE)
    impatient.cancel()
    go.set()
    assert await patient == ""
    assert loads == [SOURCE]


async def test_one_that_failed_says_why_and_is_tried_again(pool: CountingPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: TokenizerSource) -> None:
        raise TokenizerUnavailableError("not there yet")

    monkeypatch.setattr(loading, "load", fail)
    tokenizers = Tokenizers(pool)
    assert await tokenizers.load(SOURCE) == tokenizers.unavailable(SOURCE) == "not there yet"
    monkeypatch.setattr(loading, "load", lambda _: None)
    assert await tokenizers.load(SOURCE) == tokenizers.unavailable(SOURCE) == ""


async def test_one_that_failed_for_a_reason_that_passes_is_raised_for_who_tries_again(
    pool: CountingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: TokenizerSource) -> None:
        raise TokenizerUnavailableError("Too many open files", passes=True)

    monkeypatch.setattr(loading, "load", fail)
    tokenizers = Tokenizers(pool)
    with pytest.raises(TokenizerUnavailableError):
        await tokenizers.load(SOURCE)
    assert tokenizers.unavailable(SOURCE) == "Too many open files"
    monkeypatch.setattr(loading, "load", lambda _: None)
    assert await tokenizers.load(SOURCE) == tokenizers.unavailable(SOURCE) == ""


@pytest.mark.parametrize("config", ["[]", '{"architectures": 5}', '{"model_type": []}', "[" * 100_000])
async def test_a_configuration_that_is_none_is_told(pool: CountingPool, tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert "cannot be loaded" in await Tokenizers(pool).load(TokenizerSource(str(tmp_path)))
