import contextlib
import json
import re
from typing import Any

import pytest

from gateway.tokens.count import Counted
from gateway.tokens.estimate import estimate_body
from gateway.tokens.features import Kind
from gateway.tokens.render import TokenizerSource, renderer
from gateway.wire.request import Api, InvalidRequestError


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


def test_too_many_prompts_are_not_estimated(source: TokenizerSource) -> None:
    with pytest.raises(InvalidRequestError, match="may hold 16384 prompts"):
        estimate_body(source, Api.COMPLETIONS, b'{"prompt":[' + b'"",' * 16384 + b'""]}')


def test_half_a_surrogate_pair_can_be_estimated(source: TokenizerSource) -> None:
    assert estimate_body(source, Api.RESPONSES, b'{"input": "\\ud83d"}').prompts[0] > 0


def test_of_a_very_long_text_only_the_beginning_is_encoded_for_an_estimate(source: TokenizerSource) -> None:
    few, many = (
        estimate_body(source, Api.RESPONSES, json.dumps({"input": "the fox " * times}).encode()).prompts[0]
        for times in (1_000, 400_000)
    )
    assert many == pytest.approx(400 * few, rel=0.01)
