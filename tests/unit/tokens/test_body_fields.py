import json
from typing import Any

import pytest

from gateway.tokens import body_fields
from gateway.tokens.count import Counted
from gateway.tokens.engine_work import engine_work
from gateway.tokens.estimate import estimate_body
from gateway.tokens.local_count import count_body
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import MAX_SEQUENCES, Api, InvalidRequestError

FAR = 10**6


KEY = bytes(32)


SMALL_IDS = json.dumps([*range(200)]).encode()


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": %b, "model": "m"}',
        b'{"prompt": "fox", "prompt": %b}',
        b'{"prompt": %b, "echo": true}',
        b'{"prompt": %b, "truncate_prompt_tokens": 20.0, "max_tokens": 5}',
        b'{"prompt": %b, "cache_salt": "\\ud800", "model": 1e999}',
        b'{"prompt": [%b]}',
    ],
)
def test_token_ids_are_counted_as_the_engines_parser_reads_them(
    source: TokenizerSource, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    def counts() -> list[Counted]:
        return [
            count_body(source, Api.COMPLETIONS, body % ids, FAR, key=KEY)
            for ids in (SMALL_IDS, b"[1, 2.5, true]", b"[-1, 99999999999999999999]")
        ]

    found = counts()
    monkeypatch.setattr(body_fields, "_with_ids", lambda _: None)
    assert found == counts()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_body_that_is_no_object_is_refused(source: TokenizerSource, body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        count_body(source, Api.CHAT, body, FAR)


@pytest.mark.parametrize(
    "message",
    [
        '{"role":"user","content":"much more","content":null}',
        '{"role":"assistant","content":[{"type":"text","text":"much more","text":"Hi"}]}',
    ],
)
def test_a_name_that_is_there_twice_is_refused_for_an_engine_that_may_read_the_first(
    source: TokenizerSource, message: str
) -> None:
    body = b'{"messages":[{"role":"user","content":"Hi"},%b]}' % message.encode()
    ollama = frozenset({"ollama"})
    with pytest.raises(InvalidRequestError, match="twice"):
        count_body(source, Api.CHAT, body, FAR, kinds=ollama)
    with pytest.raises(InvalidRequestError, match="twice"):
        estimate_body(None, Api.CHAT, body, kinds=ollama, at_most=True)
    assert estimate_body(None, Api.CHAT, body).prompts[0] > 0


@pytest.mark.parametrize("filling", [b"1,", b"[],", b'{"a":1},', b'"",'])
def test_millions_of_values_are_not_read(source: TokenizerSource, filling: bytes) -> None:
    body = b'{"messages":[%b1]}' % (filling * (7_000_000 // filling.count(b",")))
    for work in (
        lambda: count_body(source, Api.CHAT, body, 1000),
        lambda: engine_work(Api.CHAT, body, 1000),
        lambda: estimate_body(source, Api.CHAT, body),
    ):
        with pytest.raises(InvalidRequestError):
            work()


@pytest.mark.parametrize(
    ("api", "name", "prompt"),
    [
        (Api.COMPLETIONS, "prompt", "a"),
        (Api.COMPLETIONS, "prompt", [1]),
        (Api.BATCH, "messages", [{"role": "user", "content": "a"}]),
    ],
)
def test_more_prompts_than_an_engine_samples_from_one_are_refused(
    source: TokenizerSource, api: Api, name: str, prompt: Any
) -> None:
    def body(prompts: int) -> bytes:
        return json.dumps({name: [prompt] * prompts}).encode()

    assert len(engine_work(api, body(MAX_SEQUENCES), 1000).prompts) == MAX_SEQUENCES
    for work in (
        lambda: count_body(source, api, body(MAX_SEQUENCES + 1), 1000),
        lambda: engine_work(api, body(MAX_SEQUENCES + 1), 1000),
    ):
        with pytest.raises(InvalidRequestError, match="16384"):
            work()
