import jinja2
import pytest

from gateway.tokens.message_shape import ContentFormat
from gateway.tokens.template import ChatTemplate


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
