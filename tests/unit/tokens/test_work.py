import json

import pytest

from gateway.tokens.count import PromptTooLongError
from gateway.tokens.local_count import CountedIn
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.work import WORK, sglang_work, tgi_work
from gateway.wire.engine_kinds import KINDS
from gateway.wire.request import Api

FAR = 10**6
CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'


def test_only_a_kind_with_a_counting_route_has_questions():
    assert KINDS.keys() - WORK.keys() == {"tensorrt-llm", "ollama"}
    assert all(name in WORK for name, kind in KINDS.items() if kind.counts)


def test_sglang_lists_the_tokens_of_what_it_tokenizes():
    (call,) = sglang_work(Api.CHAT, CHAT, FAR).prompts
    assert (call.path, call.counted_in) == ("/tokenize", CountedIn.TOKENS)
    (call,) = sglang_work(Api.MESSAGES, CHAT, FAR).prompts
    assert call.counted_in is CountedIn.NUMBER
    assert sglang_work(Api.COMPLETIONS, b'{"prompt":[1,2]}', FAR).prompts == (2,)


def test_tgi_counts_a_conversation_from_its_own_body_and_texts_one_by_one():
    (call,) = tgi_work(Api.CHAT, CHAT, FAR).prompts
    assert (call.path, call.body) == ("/chat_tokenize", CHAT)
    first, second = tgi_work(Api.COMPLETIONS, b'{"prompt":["a b","c"]}', FAR).prompts
    assert [json.loads(call.body) for call in (first, second)] == [{"inputs": "a b"}, {"inputs": "c"}]


def test_what_tgi_does_not_count_is_not_asked():
    with pytest.raises(NeedsEngineError, match="TGI"):
        tgi_work(Api.MESSAGES, CHAT, FAR)
    with pytest.raises(PromptTooLongError):
        tgi_work(Api.CHAT, json.dumps({"messages": [{"role": "user", "content": "x" * 3000}]}).encode(), 10)
