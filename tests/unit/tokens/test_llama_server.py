import json

import pytest

from gateway.tokens.count import PromptTooLongError
from gateway.tokens.engine_work import CountedIn
from gateway.tokens.llama_server import llama_server_work
from gateway.tokens.messages import NeedsEngineError
from gateway.wire.request import Api, InvalidRequestError

FAR = 10**6


@pytest.mark.parametrize(
    ("api", "path"),
    [
        (Api.CHAT, "/v1/chat/completions/input_tokens"),
        (Api.MESSAGES, "/v1/messages/count_tokens"),
        (Api.RESPONSES, "/v1/responses/input_tokens"),
    ],
)
def test_a_conversation_is_counted_from_its_own_body(api, path):
    body = b'{"messages":[{"role":"user","content":"Hi"}],"input":"Hi"}'
    (call,) = llama_server_work(api, body, FAR).prompts
    assert (call.path, call.body, call.counted_in) == (path, body, CountedIn.NUMBER)


def test_texts_are_tokenized_one_by_one_as_its_completions_read_them_and_ids_are_counted_here():
    first, second = llama_server_work(Api.COMPLETIONS, b'{"prompt":["a b","c"]}', FAR).prompts
    assert [json.loads(call.body)["content"] for call in (first, second)] == ["a b", "c"]
    assert json.loads(first.body)["add_special"] is json.loads(first.body)["parse_special"] is True
    assert (first.path, first.counted_in) == ("/tokenize", CountedIn.TOKENS)
    assert llama_server_work(Api.COMPLETIONS, b'{"prompt":[1,2,3]}', FAR).prompts == (3,)


@pytest.mark.parametrize("option", ["add_special_tokens", "truncate_prompt_tokens"])
@pytest.mark.parametrize("value", [False, 1, "x", []])
def test_no_option_that_it_does_not_read_keeps_a_text_from_being_counted(option, value):
    plain = llama_server_work(Api.COMPLETIONS, b'{"prompt":"a b"}', FAR)
    assert llama_server_work(Api.COMPLETIONS, json.dumps({"prompt": "a b", option: value}).encode(), FAR) == plain


def test_no_route_counts_a_batch():
    with pytest.raises(NeedsEngineError, match="batch"):
        llama_server_work(Api.BATCH, b'{"messages":[[]]}', FAR)


def test_what_cannot_fit_is_not_sent():
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 3000}], "truncate_prompt_tokens": 5}).encode()
    with pytest.raises(PromptTooLongError):
        llama_server_work(Api.CHAT, body, 10)
    assert llama_server_work(Api.CHAT, body, 100).prompts


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a":' + b"[" * 100_000])
def test_what_cannot_be_read_is_refused(body):
    with pytest.raises(InvalidRequestError):
        llama_server_work(Api.CHAT, body, FAR)
