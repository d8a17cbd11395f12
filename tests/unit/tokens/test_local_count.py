import contextlib
import json
import pickle
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.events import Prefix
from gateway.tokens import local_count
from gateway.tokens.count import PromptTooLongError
from gateway.tokens.features import Feature, Kind
from gateway.tokens.local_count import Counted, EngineCall, count_body, engine_work, estimate_body
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.normalise import ChatPrompt, TextPrompt
from gateway.tokens.render import MeasuredPrompt, Renderer, TokenizerSource, renderer
from gateway.wire.request import MAX_SEQUENCES, Api, InvalidRequestError

USER = {"role": "user", "content": "the fox"}
TOOL = {"function": {"name": "f"}}
FAR = 10**6


@pytest.fixture
def source(tokenizer_folder: Path) -> TokenizerSource:
    return TokenizerSource(str(tokenizer_folder))


def asked(api: Api, fields: dict[str, Any]) -> list[Any]:
    return [
        (prompt.path, json.loads(prompt.body)) if isinstance(prompt, EngineCall) else prompt
        for prompt in engine_work(api, json.dumps(fields).encode(), FAR).prompts
    ]


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
    monkeypatch.setattr(local_count, "_with_ids", lambda _: None)
    assert found == counts()


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


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_body_that_is_no_object_is_refused(source: TokenizerSource, body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        count_body(source, Api.CHAT, body, FAR)


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


def test_a_chat_is_asked_of_the_engine_with_what_its_route_does_not_know_as_variables() -> None:
    fields = {
        "model": "m",
        "messages": [USER, {"role": "assistant", "reasoning_content": "Hm."}],
        "tools": [{"function": {"name": "f"}}],
        "documents": [{"text": "A."}],
        "reasoning_effort": "none",
        "chat_template_kwargs": {"flavour": "sweet"},
        "temperature": 1,
        "stream": True,
    }
    [(path, body)] = asked(Api.CHAT, fields)
    assert path == "/tokenize"
    assert body == {
        "model": "m",
        "messages": [USER, {"role": "assistant", "reasoning": "Hm."}],
        "tools": [{"function": {"name": "f"}}],
        "chat_template_kwargs": {
            "flavour": "sweet",
            "documents": [{"text": "A."}],
            "reasoning_effort": "none",
            "enable_thinking": False,
        },
    }


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("api", "fields", "shown"),
    [
        (Api.CHAT, {"messages": [USER], "response_format": SCHEMA}, {"response_format": SCHEMA}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "none"}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": NAMED}, {"tool_choice": NAMED}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}, {}),
        (Api.CHAT, {"messages": [USER], "tools": [TOOL], "response_format": None, "tool_choice": None}, {}),
        (Api.CHAT, {"messages": [USER], "tools": [], "tool_choice": "none"}, {}),
        (
            Api.BATCH,
            {"messages": [[USER]], "tool_choice": "none", "response_format": SCHEMA},
            {"response_format": SCHEMA},
        ),
        (
            Api.RESPONSES,
            {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "required"},
            {"tool_choice": "required"},
        ),
        (Api.RESPONSES, {"input": "hi", "text": {"format": SCHEMA}, "tool_choice": "auto"}, {}),
    ],
)
def test_what_some_models_show_in_their_prompts_is_asked_for_where_nobody_knows_how_they_build_them(
    api: Api, fields: dict[str, Any], shown: dict[str, Any]
) -> None:
    fields |= {"chat_template_kwargs": {"flavour": "sweet"}}
    body = json.dumps(fields).encode()
    own = engine_work(api, body, FAR)
    [known], [unknown] = (
        [json.loads(prompt.body) for prompt in work.prompts if isinstance(prompt, EngineCall)]
        for work in (own, engine_work(api, body, FAR, proven=False))
    )
    assert unknown == known | {"chat_template_kwargs": known["chat_template_kwargs"] | shown}
    assert own.exact
    assert engine_work(api, body, FAR, proven=False).exact is not bool(shown)


def test_a_schema_that_conversations_share_is_bounded_where_it_is_asked_for() -> None:
    body = json.dumps({"messages": [[USER]] * 2000, "response_format": {"type": "x" * 20_000}}).encode()
    assert engine_work(Api.BATCH, body, FAR).prompts
    with pytest.raises(InvalidRequestError, match="2000 conversations brings response_format again"):
        engine_work(Api.BATCH, body, FAR, proven=False)


def test_messages_go_to_the_engine_as_they_came() -> None:
    body = b'{ "messages" : [ ] }'
    assert engine_work(Api.MESSAGES, body, FAR).prompts == (EngineCall("/v1/messages/count_tokens", body),)


def test_each_text_is_a_question_and_ids_are_none() -> None:
    assert asked(Api.COMPLETIONS, {"prompt": ["a", "b"], "model": "m"}) == [
        ("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": True}),
        ("/tokenize", {"model": "m", "prompt": "b", "add_special_tokens": True}),
    ]
    assert asked(Api.COMPLETIONS, {"prompt": [1, 2]}) == [2]


def test_a_response_is_asked_for_as_the_chat_it_becomes() -> None:
    assert asked(Api.RESPONSES, {"input": "Hi.", "model": "m"}) == [
        (
            "/tokenize",
            {
                "model": "m",
                "messages": [{"role": "user", "content": "Hi."}],
                "chat_template_kwargs": {},
                "add_generation_prompt": True,
                "continue_final_message": False,
                "add_special_tokens": True,
            },
        )
    ]


def test_an_estimate_is_about_all_texts_but_media(source: TokenizerSource) -> None:
    one = {"image_url": "data:" + "A" * 9999}
    fields = {"input": [{"role": "user", "content": [{"text": "the fox"}, one, one]}]}
    body = json.dumps(fields).encode()
    for known in (source, None):
        assert 2 * MEDIUM + 2 <= estimate_body(known, Api.RESPONSES, body).prompts[0] < 2 * MEDIUM + 60
    assert estimate_body(None, Api.RESPONSES, b'{"input": ""}') == Counted((1,), Kind(Api.RESPONSES))


MEDIUM = 16_384
KEYS = {f"the quick brown fox number {number} jumps over": {"minimum": number * 1_000_003} for number in range(100)}
LOOKS_LIKE_MEDIA = {"data": "the fox " * 500, "image_url": "data:" + "the fox " * 500}


@pytest.mark.parametrize("known", ["tokenizer", ""])
@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.RESPONSES, {"input": "a", "tools": [{"type": "function", "name": "f", "parameters": KEYS}]}),
        (Api.RESPONSES, {"input": "a", "tools": [{"type": "web_search", "x" * 4000: 1}]}),
        (Api.RESPONSES, {"input": "a", "prompt": {"id": "x", "variables": KEYS}}),
        (Api.RESPONSES, {"input": [{"type": "function_call", "arguments": "x" * 4000}]}),
        (Api.RESPONSES, {"input": [{"type": "message", "content": "a", **LOOKS_LIKE_MEDIA}]}),
        (Api.CHAT, {"messages": [], "tools": [{"function": {"name": "f", "parameters": {"enum": [12345] * 999}}}]}),
        (Api.CHAT, {"messages": [], "documents": [LOOKS_LIKE_MEDIA]}),
        (Api.CHAT, {"messages": [], "chat_template_kwargs": LOOKS_LIKE_MEDIA}),
        (Api.CHAT, {"messages": [], "response_format": KEYS}),
        (Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "source": "x" * 4000}]}]}),
        (Api.CHAT, {"messages": [{"role": "user", "content": "\u6f22" * 4000}]}),
        (Api.BATCH, {"messages": [[{"role": "user", "content": "a", "tool_calls": KEYS}]]}),
        (Api.MESSAGES, {"messages": [{"content": [{"type": "tool_use", "input": LOOKS_LIKE_MEDIA}]}]}),
        (Api.MESSAGES, {"messages": [], "system": [{"type": "text", "text": "a"}, KEYS]}),
        (Api.COMPLETIONS, {"prompt": "a", "suffix": KEYS}),
    ],
)
def test_an_estimate_is_never_below_what_the_json_costs(
    source: TokenizerSource, known: str, api: Api, fields: dict[str, Any]
) -> None:
    written = json.dumps(fields, ensure_ascii=False)
    counted = estimate_body(source if known else None, api, written.encode()).prompts[0]
    costs = renderer(source).count_text(written) if known else len(written.encode()) // 4
    assert 0.9 * costs - 20 <= counted <= 1.1 * costs + 20


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


def test_an_estimate_counts_what_no_table_names_and_nothing_that_surely_shows_in_no_prompt() -> None:
    text, chat = "word " * 100, {"messages": [{"role": "user", "content": "Hi"}]}
    plain, new, harmless = (
        estimate_body(None, Api.CHAT, json.dumps(chat | more).encode(), at_most=True).prompts[0]
        for more in ({}, {"tool_prompt": text}, {"user": text, "cache_salt": text, "lora_path": text})
    )
    assert new > plain + len(text)
    assert harmless == plain


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (Api.CHAT, {"messages": [{"role": "user", "content": "the fox " * 99}] * 9}),
        (
            Api.CHAT,
            {"messages": [{"role": "user", "content": "\u6f22\U0001f642" * 99}], "tools": [{"type": "function"}]},
        ),
        (Api.MESSAGES, {"messages": [{"role": "user", "content": "a"}], "system": "b " * 99}),
        (Api.COMPLETIONS, {"prompt": ["", "x", "\n\n\n\x00 \ud800"]}),
    ],
)
def test_a_bound_is_never_below_the_bytes_of_the_text(api: Api, fields: dict[str, Any]) -> None:
    texts = json.dumps(fields, ensure_ascii=False).encode(errors="surrogatepass")
    bound = estimate_body(None, api, json.dumps(fields).encode(), at_most=True)
    assert sum(bound.prompts) >= len(texts) - 40
    assert min(bound.prompts) > 500, "the template may write, too"


def nested(depth: int) -> dict[str, Any]:
    return {"object": nested(depth - 1), "list": [depth]} if depth else {}


@pytest.mark.parametrize(("depth", "times"), [(4, 2), (150, 20)])
def test_a_bound_is_not_below_what_a_template_writes_that_indents_tools(depth: int, times: int) -> None:
    fields = {"messages": [], "tools": [nested(depth)]}
    written = json.dumps(fields["tools"], indent=4)
    words = sum(1 if word.strip() else -(-len(word) // 4) for word in re.findall(r" +|[^ ]", written))
    (bound,) = estimate_body(None, Api.CHAT, json.dumps(fields).encode(), at_most=True).prompts
    plain = len(json.dumps(fields))
    assert words < bound - 500 < times * plain


def test_the_bound_of_token_ids_is_their_number_and_the_templates() -> None:
    ids = b'{"prompt":[1,2,3]}'
    more = b'{"prompt":[1,2,3,4]}'
    bounds = [estimate_body(None, Api.COMPLETIONS, body, at_most=True).prompts[0] for body in (ids, more)]
    assert bounds[1] - bounds[0] == 1


@pytest.mark.parametrize(
    ("api", "fields", "media"),
    [
        (Api.RESPONSES, {"input": [{"content": [{"type": "input_image", "image_url": "https://a/b.png"}] * 50}]}, 50),
        (Api.RESPONSES, {"input": [{"output": [{"type": "input_file", "file_data": "A" * 9999}]}]}, 1),
        (Api.CHAT, {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, 1),
        (Api.CHAT, {"messages": [{"content": [{"video_url": {"url": "data:" + "A" * 9999}}]}]}, 1),
        (Api.CHAT, {"messages": [{"content": [{"type": "input_audio", "input_audio": {"data": "A" * 9999}}]}]}, 1),
        (Api.MESSAGES, {"messages": [{"content": [{"type": "image", "source": {"data": "A" * 9999}}]}]}, 1),
        (
            Api.MESSAGES,
            {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}] * 3}]}]},
            3,
        ),
    ],
)
def test_each_medium_has_an_allowance_and_its_bytes_cost_nothing(
    source: TokenizerSource, api: Api, fields: dict[str, Any], media: int
) -> None:
    counted = estimate_body(source, api, json.dumps(fields).encode()).prompts[0]
    assert media * MEDIUM <= counted <= media * MEDIUM + 1500


def test_what_nests_deeper_than_can_be_written_is_refused(source: TokenizerSource) -> None:
    deep: Any = "a"
    for _ in range(400):
        deep = {"content": [deep]}
    with contextlib.suppress(InvalidRequestError):
        estimate_body(source, Api.CHAT, json.dumps({"messages": [deep]}).encode())


def test_what_nests_deeper_than_an_engine_can_be_asked_is_refused() -> None:
    for depth in range(900, 1000):
        parameters = b"[" * depth + b"]" * depth
        body = b'{"input":"hi","tools":[{"type":"function","name":"f","parameters":{"a":%b}}]}' % parameters
        with contextlib.suppress(InvalidRequestError):
            engine_work(Api.RESPONSES, body, FAR)
    with pytest.raises(InvalidRequestError, match=r"too deeply|not valid JSON"):
        engine_work(Api.RESPONSES, body, FAR)


def test_an_image_of_a_response_is_counted_by_the_engine(source: TokenizerSource) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
    fields = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, image]}]}
    with pytest.raises(NeedsEngineError):
        count_body(source, Api.RESPONSES, json.dumps(fields).encode(), FAR)
    [(_, question)] = asked(Api.RESPONSES, fields)
    assert question["messages"][0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": image["image_url"]}},
    ]


def test_what_begins_with_blanks_is_not_estimated_as_if_all_were_blanks(source: TokenizerSource) -> None:
    text = " " * 2**20 + "the fox " * 2**17
    assert renderer(source).count_text(text) > 2**18


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "data:" + "the fox " * 500},
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "data:" + "the fox " * 500}]}]},
        {"input": [{"role": "user", "content": [{"text": "a", "data": {"text": "the fox " * 500}}]}]},
        {"input": "a", "tools": [{"name": "f", "parameters": {"data": "the fox " * 500}}]},
    ],
)
def test_a_text_that_looks_like_media_is_estimated_all_the_same(
    source: TokenizerSource, fields: dict[str, Any]
) -> None:
    assert estimate_body(source, Api.RESPONSES, json.dumps(fields).encode()).prompts[0] > 500


@pytest.mark.parametrize("known", ["tokenizer", ""])
@pytest.mark.parametrize(
    ("api", "fields", "least"),
    [
        (Api.COMPLETIONS, {"prompt": [[7] * 20] * 400}, [20] * 400),
        (Api.COMPLETIONS, {"prompt": [7] * 3000}, [3000]),
        (Api.COMPLETIONS, {"prompt": ["the fox " * 50] * 3}, [50] * 3),
        (Api.COMPLETIONS, {"prompt": "the fox " * 50}, [50]),
        (Api.BATCH, {"messages": [[{"role": "user", "content": "the fox " * 50}]] * 5}, [50] * 5),
        (Api.BATCH, {"messages": [[]] * 5, "documents": [{"text": "the fox " * 50}]}, [50] * 5),
        (Api.CHAT, {"messages": [], "chat_template_kwargs": {"context": "the fox " * 50}}, [50]),
    ],
)
def test_an_estimate_is_of_each_prompt(
    source: TokenizerSource, known: str, api: Api, fields: dict[str, Any], least: list[int]
) -> None:
    counted = estimate_body(source if known else None, api, json.dumps(fields).encode()).prompts
    assert len(counted) == len(least)
    assert all(at_least <= count <= 3 * at_least + 9 for count, at_least in zip(counted, least, strict=True))


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


def test_too_many_prompts_are_not_estimated(source: TokenizerSource) -> None:
    with pytest.raises(InvalidRequestError, match="may hold 16384 prompts"):
        estimate_body(source, Api.COMPLETIONS, b'{"prompt":[' + b'"",' * 16384 + b'""]}')


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


@pytest.mark.parametrize("written", ["many", -7, 1e30, [5], "\u0665"])
@pytest.mark.parametrize("name", ["truncate_prompt_tokens", "add_special_tokens"])
@pytest.mark.parametrize(
    ("api", "fields"),
    [(Api.CHAT, {"messages": [USER]}), (Api.BATCH, {"messages": [[USER]]}), (Api.COMPLETIONS, {"prompt": "a"})],
)
def test_what_cannot_be_read_cuts_nothing_and_the_engine_is_asked(
    source: TokenizerSource, api: Api, fields: dict[str, Any], name: str, written: Any
) -> None:
    body = json.dumps(fields | {name: written}).encode()
    with pytest.raises(NeedsEngineError):
        count_body(source, api, body, 1000)
    work = engine_work(api, body, 1000)
    assert isinstance(work.prompts[0], EngineCall)
    assert work.encoding.truncate is None
    assert [json.loads(work.prompts[0].body)] == [question for _, question in asked(api, fields)]


@pytest.mark.parametrize("written", ["+131072", "131072.0", "131_072"])
def test_a_loose_truncation_is_counted_here(source: TokenizerSource, written: str) -> None:
    body = json.dumps({"messages": [USER], "truncate_prompt_tokens": written}).encode()
    assert count_body(source, Api.CHAT, body, FAR) == count_body(
        source, Api.CHAT, json.dumps({"messages": [USER], "truncate_prompt_tokens": 131072}).encode(), FAR
    )


def test_half_a_surrogate_pair_can_be_estimated(source: TokenizerSource) -> None:
    assert estimate_body(source, Api.RESPONSES, b'{"input": "\\ud83d"}').prompts[0] > 0


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


@pytest.mark.parametrize(
    ("api", "fields", "choice"),
    [
        (Api.CHAT, {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]}, "none"),
        (Api.RESPONSES, {"input": "the fox", "tools": [{"type": "function", "name": "f"}]}, "none"),
    ],
)
def test_the_engine_is_asked_without_tools_that_it_leaves_out(api: Api, fields: dict[str, Any], choice: str) -> None:
    def asked(excludes: bool, **more: Any) -> dict[str, Any]:  # noqa: FBT001
        (call,) = engine_work(api, json.dumps(fields | more).encode(), 1000, excludes_unused=excludes).prompts
        assert isinstance(call, EngineCall)
        return dict(json.loads(call.body))

    assert "tools" in asked(False, tool_choice=choice)
    assert "tools" in asked(True)
    assert "tools" not in asked(True, tool_choice=choice)


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


def test_of_a_very_long_text_only_the_beginning_is_encoded_for_an_estimate(source: TokenizerSource) -> None:
    few, many = (
        estimate_body(source, Api.RESPONSES, json.dumps({"input": "the fox " * times}).encode()).prompts[0]
        for times in (1_000, 400_000)
    )
    assert many == pytest.approx(400 * few, rel=0.01)


BATCH: dict[str, Any] = {"messages": [[USER], [], [USER, {"role": "assistant", "reasoning_content": "Hm."}]]}


def test_each_conversation_of_a_batch_is_asked_for_as_the_chat_it_is() -> None:
    shared = {"model": "m", "documents": [{"text": "A."}], "mm_processor_kwargs": {"a": 1}}
    assert asked(Api.BATCH, shared | BATCH | {"tools": [TOOL]}) == [
        asked(Api.CHAT, shared | {"messages": messages})[0] for messages in BATCH["messages"]
    ]
    assert asked(Api.BATCH, BATCH) == [asked(Api.CHAT, {"messages": messages})[0] for messages in BATCH["messages"]]


def test_what_the_questions_of_a_batch_share_is_in_memory_once() -> None:
    fields = {"messages": [[]] * 1000, "mm_processor_kwargs": {"a": "x" * 20_000}}
    work = engine_work(Api.BATCH, json.dumps(fields).encode(), FAR)
    assert len(pickle.dumps(work)) < 200_000
    assert len({id(call.shared) for call in work.prompts if isinstance(call, EngineCall)}) == 1


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
