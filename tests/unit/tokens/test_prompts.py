import json
from typing import Any

import pytest

from gateway.tokens.engine_work import engine_work
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import Api, InvalidRequestError

USER = {"role": "user", "content": "the fox"}


FAR = 10**6


def test_a_batch_brings_the_features_of_all_its_conversations(source: TokenizerSource) -> None:
    fields = {"messages": [[USER], [{"role": "developer", "content": "a"}]], "documents": []}
    assert str(count_body(source, Api.BATCH, json.dumps(fields).encode(), FAR).kind) == "batch+developer+documents"


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("documents", [{}] * 2000),
        ("documents", [{"text": "x" * 20_000}]),
        ("chat_template_kwargs", {f"k{number}": 1 for number in range(2000)}),
        ("mm_processor_kwargs", {"a": "x" * 20_000}),
        ("reasoning_effort", "x" * 20_000),
    ],
)
def test_what_conversations_share_may_be_large_for_few_of_them(source: TokenizerSource, name: str, shared: Any) -> None:
    few, many = (json.dumps({"messages": [[USER]] * number, name: shared}).encode() for number in (10, 2000))
    assert engine_work(Api.BATCH, few, FAR).prompts
    with pytest.raises(InvalidRequestError, match=f"2000 conversations brings {name} again.*send fewer"):
        engine_work(Api.BATCH, many, FAR)
    with pytest.raises((InvalidRequestError, NeedsEngineError), match=f"brings {name} again|sets mm_processor_kwargs"):
        count_body(source, Api.BATCH, many, FAR)
