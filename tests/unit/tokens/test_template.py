import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gateway.tokens.fast_tokenizer import FastTokenizer
from gateway.tokens.message_shape import ContentFormat
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.normalise import chat_prompt
from gateway.tokens.render import Renderer
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Tokenizer
from gateway.tokens.transformers_tokenizer import TransformersTokenizer
from gateway.wire.request import InvalidRequestError
from tests.integration import parity
from tests.integration.parity.cases import CHAT
from tests.integration.parity.generator import Chats

FAMILIES = {path.stem: path.read_text() for path in Path(*parity.__path__, "templates").glob("*.jinja")}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ContentFormat.STRING),
        ("{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages %}{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        ("{% for m in messages[1:] %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.PARTS),
        (
            (
                "{% set rest = messages[1:] %}{% set rest = rest %}"
                "{% for m in rest %}{% for c in m.content %}{% endfor %}"
                "{% endfor %}"
            ),
            ContentFormat.PARTS,
        ),
        ("{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.STRING),
        ("{% for m in others %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", ContentFormat.STRING),
        (
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}",
            ContentFormat.PARTS,
        ),
        (
            (
                "{% macro show(it) %}{% for c in it %}{{ c }}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(m.content) }}{% endfor %}"
            ),
            ContentFormat.PARTS,
        ),
        (
            (
                "{% macro show(it) %}{% for c in it %}{{ c }}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(it=m.content) }}{% endfor %}"
            ),
            ContentFormat.PARTS,
        ),
        (
            (
                "{% macro show(content) %}{% for c in content %}{{ c }}{% endfor %}{% endmacro %}"
                "{% for m in messages %}{{ show(m.name) }}{% endfor %}"
            ),
            ContentFormat.STRING,
        ),
        ("{% for role, m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", ContentFormat.STRING),
        (
            (
                "{% set ns = namespace() %}{% set ns.all = messages %}"
                "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}"
            ),
            ContentFormat.STRING,
        ),
    ],
)
def test_a_template_that_loops_over_content_gets_parts(source: str, expected: ContentFormat) -> None:
    assert ChatTemplate(source).content_format is expected


def test_names_passed_around_in_a_circle_end() -> None:
    source = "{% set a = messages %}{% set b = a %}{% set a = b %}{% for m in b %}{{ m.content }}{% endfor %}"
    assert ChatTemplate(source).content_format is ContentFormat.STRING


def test_variables_are_those_read_from_outside() -> None:
    template = ChatTemplate("{% set own = 1 %}{{ own }}{% if thinking is defined %}{{ messages[0].x }}{% endif %}")
    assert template.variables == {"thinking", "messages"}


def test_tags_of_transformers_are_known() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert ChatTemplate(source).variables == {"messages"}


def test_a_template_knows_the_developer_by_naming_it() -> None:
    assert ChatTemplate("{% if messages[0].role == 'developer' %}{% endif %}").knows_developer
    assert not ChatTemplate("{{ developer }}").knows_developer


def test_what_is_no_template_is_refused() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% for %}")


def rendered(renderer: Renderer, body: Mapping[str, Any]) -> str:
    """The text of a conversation, or what is said instead."""
    try:
        return renderer.render(chat_prompt(body))
    except (InvalidRequestError, NeedsEngineError, NotCountableError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def by_us(tokenizer_folder: Path) -> Tokenizer:
    return FastTokenizer(tokenizer_folder)


@pytest.fixture(scope="module")
def by_transformers(tokenizer_folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    return TransformersTokenizer(AutoTokenizer.from_pretrained(tokenizer_folder))


ODD = {
    "the end of blanks": "{% for m in messages %}[{{ m.content.strip() }}]{% endfor %}",
    "the end twice": "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
    "no end": "{% for m in messages[:1] %}{{ m.content }}{% endfor %}",
    "no content": "{{ messages | length }}",
    "json": (
        "{{ messages | tojson(indent=2, sort_keys=True) }}{{ tools | tojson(separators=(',', ':')) }}"
        "{{ [1, '\u00fc'] | tojson(True) }}"
    ),
    "html": "{{ '<&>\\u00fc' | tojson }}{{ messages[0].content | tojson(ensure_ascii=true) }}",
    "a day": "{{ strftime_now('%Y %B') }}{{ documents }}{{ add_generation_prompt }}",
    "a refusal": "{{ raise_exception('no ' + messages[0].role) }}",
    "a failure": "{{ messages[0].nothing.more }}",
    "out of the sandbox": "{{ messages.append(1) }}{{ ''.__class__.__mro__ }}",
    "a loop left": "{% for m in messages %}{{ m.role }}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}",
    "a generation in a loop": (
        "{% set ns = namespace(n=0) %}{% set last = 'x' %}{% for m in messages %}{% generation %}"
        "{% set last = m.role %}{% set ns.n = ns.n + 1 %}{{ loop.index }}{{ last }}{% endgeneration %}{{ last }}"
        "{% endfor %}{{ last }}{{ ns.n }}"
    ),
}  # fmt: skip
MORE: dict[str, Any] = {
    "a last text of parts": {
        "messages": [
            {"role": "assistant", "content": [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]}
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "nothing to continue": {
        "messages": [{"role": "assistant", "content": None, "tool_calls": []}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "both at once": {"messages": [{"role": "user", "content": "Hi"}], "continue_final_message": True},
    "nobody": {"messages": []},
}


def test_a_template_of_any_size_is_analysed_in_a_time_that_goes_with_its_size() -> None:
    one = (
        "{% macro show_N(text) %}{% for part in text %}{{ part }}{% endfor %}{% set it_N = messages %}{% endmacro %}"
        "{{ show_N(messages[0].content) }}"
    )
    began = time.process_time()
    ChatTemplate("".join(one.replace("N", str(number)) for number in range(600)))
    assert time.process_time() - began < 10.0, "half a minute, where each macro and each name was looked for anew"


@pytest.mark.parametrize("family", FAMILIES | ODD)
def test_a_conversation_is_rendered_as_transformers_renders_it(
    by_us: Tokenizer, by_transformers: Tokenizer, family: str
) -> None:
    source = (FAMILIES | ODD)[family]
    ours, theirs = Renderer(by_us, source), Renderer(by_transformers, source)
    for case, body in (CHAT | MORE).items():
        assert rendered(ours, body) == rendered(theirs, body), case
    generator = Chats(seed=7)
    for body in (generator.request() for _ in range(100)):
        assert rendered(ours, body) == rendered(theirs, body), body
