import threading

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.tokens.interruption import CallerLeftError, TooMuchHereError, follow, limited
from gateway.tokens.rendered_text import OutputTooLongError, bounded

EACH = "{% for item in items %}{{ item }}{% endfor %}"
IN_A_MACRO = "{% macro all() %}" + EACH + "{% endmacro %}{% set said = all() %}{{ said | length }}"


def render(source: str, items: list[str]) -> str:
    return ImmutableSandboxedEnvironment().from_string(source).render(items=items)


@pytest.mark.parametrize("source", [EACH, IN_A_MACRO])
def test_a_text_is_given_up_where_it_grows_too_long(source: str) -> None:
    items = ["fox "] * 25
    with bounded(100):
        assert render(source, items) == ("100" if source is IN_A_MACRO else "fox " * 25)
        with pytest.raises(OutputTooLongError) as error:
            render(source, [*items, "and one more", "for ever"])
    assert error.value.characters == 112
    assert render(EACH, items * 2) == "fox " * 50


def test_a_template_that_takes_too_long_for_its_thread_is_ended() -> None:
    def endless():
        while True:
            yield "a"

    with pytest.raises(TooMuchHereError), limited(0.05):
        ImmutableSandboxedEnvironment().from_string(EACH).render(items=endless())


def test_what_nobody_waits_for_is_rendered_no_further() -> None:
    left, ended, read = threading.Event(), [], []

    def items():
        for number in range(10_000):
            if number == 100:
                left.set()
            read.append(number)
            yield str(number)

    def work() -> None:
        follow(left)
        try:
            ImmutableSandboxedEnvironment().from_string(EACH).render(items=items())
        except CallerLeftError:
            ended.append("job")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == ["job"]
    assert len(read) < 1000
