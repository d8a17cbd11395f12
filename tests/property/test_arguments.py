"""What holds of every spelling of an engine's arguments."""

from hypothesis import given
from hypothesis import strategies as st

from engine.arguments import FLAGS, Arguments, Flag, Value
from tests.fakes.engine_arguments import Written, lines


@given(lines(FLAGS))
def test_a_flag_reads_the_same_in_every_spelling(line: list[Written]) -> None:
    read = Arguments.parse(word for written in line for word in written.words)
    last = {written.flag: written for written in line}
    assert read.words == tuple(word for written in line for word in written.words)
    assert read.flags == last.keys()
    for flag, written in last.items():
        assert read.text(flag) == written.value
        assert read.switch(flag) is written.on


@given(lines(FLAGS), st.sampled_from(FLAGS))
def test_without_a_flag_the_others_read_the_same(line: list[Written], gone: Flag) -> None:
    read = Arguments.parse(word for written in line for word in written.words)
    rest = read.without(gone.name)
    assert rest.flags == read.flags - {gone.name}
    assert all(rest.text(flag) == read.text(flag) for flag in rest.flags)
    assert Arguments.parse(rest.words) == rest


@given(st.lists(st.text(max_size=6) | st.sampled_from([*(flag.name for flag in FLAGS), "-O", "--", "-", "-tp."])))
def test_no_words_are_lost_whatever_they_are(words: list[str]) -> None:
    read = Arguments.parse(words)
    assert read.words == tuple(words)
    for flag in FLAGS:
        if flag.value not in {Value.TEXT, Value.SWITCH}:
            read.integer(flag.name)
            read.fraction(flag.name)
