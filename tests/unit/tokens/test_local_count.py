import contextlib
import json
import pickle
import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.events import Prefix
from gateway.tokens.count import Counted, PromptTooLongError
from gateway.tokens.engine_work import engine_work
from gateway.tokens.estimate import estimate_body
from gateway.tokens.features import Feature
from gateway.tokens.local_count import count_body
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.normalise import ChatPrompt, TextPrompt
from gateway.tokens.render import MeasuredPrompt, Renderer, TokenizerSource, renderer
from gateway.wire.request import Api, InvalidRequestError

USER = {"role": "user", "content": "the fox"}


FAR = 10**6


@pytest.mark.parametrize(
    ("api", "fields", "kind"),
    [
        (Api.CHAT, {"messages": [USER]}, "chat"),
        (
            Api.CHAT,
            {"messages": [USER], "tools": [{"function": {"name": "f"}}], "documents": []},
            "chat+documents+tools",
        ),
        (Api.COMPLETIONS, {"prompt": ["the", "fox"]}, "completions"),
        (Api.MESSAGES, {"messages": [USER], "system": "be kind"}, "messages"),
        (Api.RESPONSES, {"input": "the fox"}, "responses+add_special_tokens"),
    ],
)
def test_each_api_is_counted_and_named(source: TokenizerSource, api: Api, fields: dict[str, Any], kind: str) -> None:
    counted = count_body(source, api, json.dumps(fields).encode(), FAR)
    assert str(counted.kind) == kind
    assert all(count > 0 for count in counted.prompts)


KEY = bytes(32)


LONG = "the quick brown fox " * 100


def prefix(source: TokenizerSource, api: Api = Api.COMPLETIONS, **fields: Any) -> Prefix:
    return count_body(source, api, json.dumps(fields).encode(), FAR, key=KEY).prefix


def test_prompts_that_begin_alike_have_parts_in_common(source: TokenizerSource) -> None:
    one, other = prefix(source, prompt=LONG + "A" * 200), prefix(source, prompt=LONG + "B" * 200)
    common = set(one) & set(other)
    tokens = count_body(source, Api.COMPLETIONS, json.dumps({"prompt": LONG}).encode(), FAR).prompts[0]
    assert tokens - 64 <= max(end for end, _ in common) <= tokens
    assert len(one) == len(other) > len(common)


def test_the_same_tokens_have_the_same_parts_whatever_the_api(source: TokenizerSource) -> None:
    said = {"role": "user", "content": LONG}
    rendered = f"<user>{LONG}</user><assistant>"  # the tokenizer adds what comes before it
    assert prefix(source, Api.CHAT, messages=[said]) == prefix(source, prompt=rendered)
    encoded = renderer(source).measure_texts(TextPrompt((LONG,)), FAR)[0].encoded
    assert encoded is not None
    assert prefix(source, prompt=encoded.ids) == prefix(source, prompt=LONG) != ()


def test_what_else_decides_the_content_of_the_cache_parts_them(source: TokenizerSource) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"model": "lora"},
        {"cache_salt": "a"},
        {"cache_salt": "b"},
        {"model": "lora", "cache_salt": "a"},
    ]
    ways += [{"extra_key": "a"}, {"lora_path": "a"}, {"lora_request": {"lora_name": "a"}}, {"lora": [{"id": 0}]}]
    ends = [{hashed for _, hashed in prefix(source, prompt=LONG, **way)} for way in ways]
    assert len(set().union(*ends)) == sum(map(len, ends)) == len(ends) * len(ends[0]) > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [LONG, LONG]},
        {"prompt": "the fox"},
        {"prompt": LONG, "truncate_prompt_tokens": 200},
        {"prompt": LONG, "echo": True, "logprobs": 1},
        {"prompt": LONG, "prompt_logprobs": 0},
        {"prompt": [0.5] * 200},
        {"prompt": [-1] * 200},
    ],
)
def test_what_no_engine_finds_in_its_cache_has_no_parts(source: TokenizerSource, fields: dict[str, Any]) -> None:
    assert prefix(source, **fields) == ()


def test_nothing_is_hashed_for_nobody(source: TokenizerSource) -> None:
    assert count_body(source, Api.COMPLETIONS, json.dumps({"prompt": LONG}).encode(), FAR).prefix == ()


def test_a_distrusted_feature_is_left_to_the_engine(source: TokenizerSource) -> None:
    body = json.dumps({"messages": [USER], "documents": [{"text": "A."}]}).encode()
    count_body(source, Api.CHAT, body, FAR, frozenset({Feature.TOOLS}))
    with pytest.raises(NeedsEngineError):
        count_body(source, Api.CHAT, body, FAR, frozenset({Feature.DOCUMENTS}))


_FIELDS = (
    "messages", "prompt", "input", "tools", "system", "chat_template_kwargs", "documents", "reasoning", "thinking",
    "reasoning_effort", "add_generation_prompt", "truncate_prompt_tokens", "instructions", "output_config",
)  # fmt: skip


_KEYS = ("role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id", "input", "tools")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(api=st.sampled_from(list(Api)), fields=st.dictionaries(st.sampled_from(_FIELDS), _VALUES))
def test_whatever_the_body_says_there_is_a_count_or_a_reason(
    source: TokenizerSource, api: Api, fields: dict[str, Any]
) -> None:
    body = json.dumps(fields).encode()
    for work in (lambda: count_body(source, api, body, 100), lambda: engine_work(api, body, 100)):
        with contextlib.suppress(NeedsEngineError, NotCountableError, InvalidRequestError, PromptTooLongError):
            work()
    estimate_body(None, api, body)


@pytest.mark.parametrize("error", [PromptTooLongError(5), InvalidRequestError("m", "p"), NeedsEngineError("r")])
def test_errors_come_back_whole_from_another_process(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert vars(again) == vars(error)


class Encoded:
    ids = (1, 2, 3)

    def __len__(self) -> int:
        return len(self.ids)


def test_of_the_conversations_of_a_batch_no_tokens_are_kept(
    source: TokenizerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    alive: weakref.WeakSet[Encoded] = weakref.WeakSet()

    def measure(self: Renderer, _prompt: ChatPrompt, _max_model_len: int) -> MeasuredPrompt:
        kept.append(len(alive))
        encoded = Encoded()
        alive.add(encoded)
        return MeasuredPrompt(3, encoded)

    monkeypatch.setattr(Renderer, "measure_chat", measure)
    body = json.dumps({"messages": [[{"role": "user", "content": "a"}]] * 5}).encode()
    assert count_body(source, Api.BATCH, body, FAR).prompts == (3,) * 5
    assert kept == [0] * 5


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ({"add_special_tokens": "true"}, {"add_special_tokens": True}),
        ({"add_special_tokens": 0}, {"add_special_tokens": False}),
        ({"truncate_prompt_tokens": "5"}, {"truncate_prompt_tokens": 5}),
        ({"truncate_prompt_tokens": 5.0}, {"truncate_prompt_tokens": 5}),
    ],
)
def test_numbers_and_booleans_are_read_as_vllm_reads_them(
    source: TokenizerSource, loose: dict[str, Any], strict: dict[str, Any]
) -> None:
    def counted(fields: dict[str, Any]) -> Counted:
        body = json.dumps({"prompt": ["the fox " * 9, "a"], **fields}).encode()
        return count_body(source, Api.COMPLETIONS, body, 1000)

    assert counted(loose) == counted(strict)
    assert len(counted(loose).prompts) == 2


@pytest.mark.parametrize("written", ["+131072", "131072.0", "131_072"])
def test_a_loose_truncation_is_counted_here(source: TokenizerSource, written: str) -> None:
    body = json.dumps({"messages": [USER], "truncate_prompt_tokens": written}).encode()
    assert count_body(source, Api.CHAT, body, FAR) == count_body(
        source, Api.CHAT, json.dumps({"messages": [USER], "truncate_prompt_tokens": 131072}).encode(), FAR
    )
