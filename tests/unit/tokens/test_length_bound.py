import json
from typing import Any

import pytest

from gateway.tokens.count import PromptTooLongError
from gateway.tokens.engine_work import EngineCall, engine_work
from gateway.wire.request import Api


@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES, Api.COMPLETIONS, Api.RESPONSES])
def test_an_engine_is_not_asked_about_what_cannot_fit(api: Api) -> None:
    long = "x" * 100_000
    fields = {
        Api.CHAT: {"messages": [{"role": "user", "content": [{"type": "text", "text": long}]}]},
        Api.MESSAGES: {"messages": [], "system": long},
        Api.COMPLETIONS: {"prompt": ["a", long]},
        Api.RESPONSES: {"input": long},
    }[api]
    body = json.dumps(fields).encode()
    assert engine_work(api, body, 1000).prompts
    with pytest.raises(PromptTooLongError) as caught:
        engine_work(api, body, 100)
    assert 100 < caught.value.at_least < 100_000


@pytest.mark.parametrize(
    ("api", "part"),
    [
        (Api.CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}),
        (Api.CHAT, {"type": "input_audio", "input_audio": {"format": "wav", "data": "A" * 100_000}}),
        (Api.MESSAGES, {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}}),
    ],
)
def test_media_may_be_large(api: Api, part: dict[str, Any]) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()
    assert engine_work(api, body, 100).prompts


def test_what_is_truncated_may_be_large() -> None:
    text = {"prompt": "x" * 100_000, "truncate_prompt_tokens": 5}
    assert engine_work(Api.COMPLETIONS, json.dumps(text).encode(), 100).prompts == (100,)
    several = {"prompt": ["x" * 100_000, "the fox"], "truncate_prompt_tokens": -1}
    long, short = engine_work(Api.COMPLETIONS, json.dumps(several).encode(), 100).prompts
    assert (long, isinstance(short, EngineCall)) == (100, True)
    chat = {"messages": [{"role": "user", "content": "x" * 100_000}], "truncate_prompt_tokens": 5}
    assert engine_work(Api.CHAT, json.dumps(chat).encode(), 100).prompts == (100,)
    with pytest.raises(PromptTooLongError):  # it has no such field
        engine_work(Api.MESSAGES, json.dumps(chat).encode(), 100)
