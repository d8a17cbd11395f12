"""What a client may make of a chat template that prints more than it was given."""

import json
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.tokenizer import make_tokenizer
from tests.security.target import MOST_STRETCH, Target, attacked

pytestmark = pytest.mark.slow

MB = 1 << 20
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SIZES = ("--max-model-len", "131072", "--num-blocks", "10000")
TEMPLATE = (
    "{%- macro numbers(messages, content) -%}{%- for message in messages -%}"
    "{%- if message.content == content -%}{{ loop.index }}{%- endif -%}{%- endfor -%}{%- endmacro -%}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token or '' }}"
    "{% if message.role == 'system' %}{{ numbers(messages, message.content) }}{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
"""It prints a token behind each message, as Zephyr's does, and looks for what some refer to, as Command R's does."""
TURNS = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
FUNCTION = {"type": "function", "name": "f"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    with attacked(folder, TEMPLATE, tmp_path_factory.mktemp("kvgate") / "log", *SIZES) as target:
        assert target.post(CHAT, ended(MB, 1)).status == 400, "its counting process is there"
        target.wait_settled()
        yield target


def encoded(**fields: object) -> bytes:
    return json.dumps({"model": "fake", "max_tokens": 1} | fields, separators=(",", ":")).encode()


def ended(size: int, turns: int) -> bytes:
    """Name a token that stands behind each message."""
    bare = encoded(messages=TURNS * turns, chat_template_kwargs={"eos_token": ""})
    return encoded(messages=TURNS * turns, chat_template_kwargs={"eos_token": "~" * (size - len(bare))})


def referring(size: int) -> bytes:
    """Messages that all refer to all others."""
    one = {"role": "system", "content": ""}
    return encoded(messages=[one] * (size // (len(json.dumps(one)) + 1)))


def tools(*shown: object) -> bytes:
    return encoded(input="Hi.", tools=shown)


@pytest.mark.parametrize(
    ("path", "body", "statuses"),
    [
        (CHAT, lambda: ended(4000, 18), (200,)),
        (CHAT, lambda: ended(60_000, 400), (400,)),
        (CHAT, lambda: ended(MB, 8000), (400,)),
        (CHAT, lambda: referring(60_000), (400,)),
        (
            RESPONSES,
            lambda: tools(*[{"type": "namespace", "name": "n" * 4500, "tools": [FUNCTION] * 230}] * 200),
            (400,),
        ),
        (RESPONSES, lambda: tools(*[{"type": "custom", "name": "c"}] * 100_000), (400,)),
    ],
    ids=[
        "a long token behind a few messages",
        "a longer one behind more",
        "the longest behind thousands",
        "messages that refer to each other",
        "many namespaces",
        "many custom tools",
    ],
)
def test_a_prompt_that_grows_far_beyond_its_body_costs_no_more_than_its_figures(
    target: Target, path: str, body: Callable[[], bytes], statuses: tuple[int, ...]
) -> None:
    given = body()
    got, stretch, grown = target.cost(lambda target: target.post(path, given))
    assert got.status in statuses, got.raw[:300]
    assert stretch < MOST_STRETCH
    assert grown < 192 * MB
