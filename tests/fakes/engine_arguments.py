"""Command lines of a vLLM in all the ways of writing them that vLLM takes."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from engine.arguments import Flag, Value

_VALUES = {
    Value.TEXT: ["a", "org/model", "-1", "{{ '--port 1' }}", "a=b", '{"a": "b"}'],
    Value.INTEGER: ["1", "16", "4096"],
    Value.SIZE: ["7", "8k", "8K", "25.6k", "2M", "1G"],
    Value.SIZE_OR_AUTO: ["7", "8k", "8K", "25.6k", "2M", "1G", "auto", "-1"],
    Value.FRACTION: ["0.5", "1", ".25", "4"],
}


@dataclass(frozen=True)
class Written:
    """A flag with its value, as words."""

    flag: str
    words: tuple[str, ...]
    value: str | None
    on: bool = True


@st.composite
def lines(draw: st.DrawFn, flags: Sequence[Flag]) -> list[Written]:
    """Up to eight of these flags, each in one of its spellings; some are repeated."""
    return [draw(_written(flag)) for flag in draw(st.lists(st.sampled_from(flags), max_size=8))]


@st.composite
def _written(draw: st.DrawFn, flag: Flag) -> Written:
    spelling = draw(st.sampled_from((flag.name, *flag.aliases)))
    if flag.value is Value.SWITCH:
        on = draw(st.booleans())
        spelling = spelling if on else f"--no-{spelling.removeprefix('--')}"
        return Written(flag.name, (_separated(draw, spelling),), None, on)
    value = draw(st.sampled_from(_VALUES[flag.value]))
    spelling = _separated(draw, spelling)
    return Written(flag.name, draw(st.sampled_from([(spelling, value), (f"{spelling}={value}",)])), value)


def _separated(draw: st.DrawFn, spelling: str) -> str:
    """With dashes or underscores, for each of them."""
    if not spelling.startswith("--"):
        return spelling
    return "--" + "".join(draw(st.sampled_from("-_")) if letter == "-" else letter for letter in spelling[2:])
