import pytest

from engine.arguments import ArgumentError, Arguments


def test_each_flag_takes_its_own_words() -> None:
    given = Arguments.parse(
        ["--max_model_len=8k", "-dp", "2", "-q", "awq", "--enforce-eager", "--kv-cache-memory", "1G"]
    )
    assert given.integer("--max-model-len") == 8000
    assert given.integer("--data-parallel-size") == 2
    assert given.text("--quantization") == "awq"
    assert given.switch("--enforce-eager")
    assert given.integer("--kv-cache-memory-bytes") == 2**30
    assert given.integer("--max-num-seqs") is None


@pytest.mark.parametrize(
    ("written", "flag"),
    [
        ("--max_num_seqs=3", "--max-num-seqs"),
        ("-tp", "--tensor-parallel-size"),
        ("-tp=2", "--tensor-parallel-size"),
        ("-qawq", "--quantization"),
        ("-O3", "--optimization-level"),
        ("-cc.mode=3", "--compilation-config"),
        ("--compilation-config.mode", "--compilation-config"),
        ("--compilation_config.pass_config", "--compilation-config"),
        ("--device-memory-utilization", "--gpu-memory-utilization"),
        ("--kv-cache-mem", "--kv-cache-memory-bytes"),
        ("--no-enforce-eager", "--enforce-eager"),
        ("--one-of-a-later-version", "--one-of-a-later-version"),
    ],
)
def test_a_flag_has_many_spellings(written: str, flag: str) -> None:
    assert Arguments.parse((written, "5")).flags == {flag}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("-tp", "2"), "2"),
        (("--tensor_parallel_size=4",), "4"),
        (("-tp", "2", "--tensor-parallel-size", "8"), "8"),
        (("--tensor-parallel-size",), None),
        (("--tensor-parallel-size", "-dp", "2"), None),
        ((), None),
    ],
)
def test_of_a_repeated_flag_the_last_value_counts(words: tuple[str, ...], value: str | None) -> None:
    assert Arguments.parse(words).text("--tensor-parallel-size") == value


def test_the_last_of_a_switch_and_its_negation_counts() -> None:
    given = Arguments.parse(["--enforce-eager", "--no-enforce-eager"])
    assert given.has("--enforce-eager")
    assert given.switch("--enforce-eager") is False


def test_a_value_may_look_like_a_flag_and_a_part_takes_any_word() -> None:
    given = Arguments.parse(["--max-model-len", "-1", "--chat-template", "-{{ '--port 1' }} -", "-cc.x", "--port"])
    assert given.integer("--max-model-len") == -1
    assert given.text("--chat-template") == "-{{ '--port 1' }} -"
    assert given.flags == {"--max-model-len", "--chat-template", "--compilation-config"}


@pytest.mark.parametrize(
    ("flag", "value", "size"),
    [
        ("--max-model-len", "8k", 8_000),
        ("--max-model-len", "8K", 8_192),
        ("--max-model-len", "25.6k", 25_600),
        ("--max-model-len", "1.5K", None),
        ("--max-model-len", "AUTO", -1),
        ("--max-model-len", "1e3", None),
        ("--kv-cache-memory-bytes", "4G", 4 * 2**30),
        ("--kv-cache-memory-bytes", "auto", None),
        ("--max-num-seqs", "8k", None),
        ("--max-num-seqs", " 8 ", 8),
        ("--max-num-seqs", "inf", None),
    ],
)
def test_sizes_are_read_where_vllm_takes_them(flag: str, value: str, size: int | None) -> None:
    given = Arguments.parse([flag, value])
    assert given.integer(flag) == size
    if size is None:
        with pytest.raises(ArgumentError, match=f"{flag} {value}"):
            given.check()


@pytest.mark.parametrize("value", ["lots", "inf", "nan"])
def test_a_share_that_is_no_number_is_named(value: str) -> None:
    given = Arguments.parse(["--gpu-memory-utilization", value])
    assert given.fraction("--gpu-memory-utilization") is None
    with pytest.raises(ArgumentError, match=f"--gpu-memory-utilization {value} is no number"):
        given.check()


def test_a_number_that_is_missing_is_named() -> None:
    with pytest.raises(ArgumentError, match="--max-num-seqs has no value"):
        Arguments.parse(["--max-num-seqs", "--enforce-eager"]).check()


def test_without_a_flag_the_rest_is_as_it_was_written() -> None:
    given = Arguments.parse(["--max_num_seqs=3", "-tp", "2", "-cc.mode", "3", "stray", "--lora-modules", "a=b", "c=d"])
    assert given.without("--tensor-parallel-size").words == (
        *("--max_num_seqs=3", "-cc.mode", "3", "stray"),
        *("--lora-modules", "a=b", "c=d"),
    )
