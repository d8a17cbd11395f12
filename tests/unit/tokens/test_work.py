import json

import pytest

from gateway.tokens.count import PromptTooLongError
from gateway.tokens.engine_work import CountedIn
from gateway.tokens.messages import NeedsEngineError, NotCountableError
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


def test_sglang_is_asked_with_all_that_its_chat_reads_and_nothing_that_only_tokenizing_does():
    chat = json.loads(CHAT) | {"reasoning": {"effort": "low"}, "task": "title"}
    more = {"truncate_prompt_tokens": 1, "add_generation_prompt": False, "stream": True, "documents": [{"text": "x"}]}
    work = sglang_work(Api.CHAT, json.dumps(chat | more).encode(), FAR)
    (call,) = work.prompts
    assert json.loads(call.body) == chat
    assert work.encoding.truncate is None
    text = {"prompt": "a b", "truncate_prompt_tokens": 1, "add_special_tokens": False}
    work = sglang_work(Api.COMPLETIONS, json.dumps(text).encode(), FAR)
    (call,) = work.prompts
    assert json.loads(call.body) == {"prompt": "a b", "add_special_tokens": True}
    assert work.encoding.truncate is None


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
def test_sglang_is_not_asked_for_media(api):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    body = json.dumps({"messages": [{"role": "user", "content": [image]}]}).encode()
    with pytest.raises(NotCountableError, match="media"):
        sglang_work(api, body, FAR)


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
