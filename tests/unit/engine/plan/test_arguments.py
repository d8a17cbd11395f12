import pytest

from engine.plan.arguments import ArgumentError, Arguments


def test_flags_are_read_as_vllm_reads_them():
    given = Arguments.parse(["--max_model_len=8k", "-tp", "2", "--enforce-eager", "--kv-cache-memory", "1G"])
    assert given.integer("--max-model-len") == 8000
    assert given.integer("--tensor-parallel-size") == 2
    assert given.given("--enforce-eager")
    assert given.text("--enforce-eager") is None
    assert given.integer("--kv-cache-memory-bytes") == 2**30
    assert given.integer("--max-num-seqs") is None


def test_the_last_of_a_flag_wins_and_a_negation_counts_as_given():
    given = Arguments.parse(["--max-num-seqs", "8", "--max-num-seqs", "9", "--no-enable-prefix-caching"])
    assert given.integer("--max-num-seqs") == 9
    assert given.given("--enable-prefix-caching")


@pytest.mark.parametrize("flag", ["--max-model-len", "--gpu-memory-utilization"])
def test_a_value_that_is_no_number_is_named(flag):
    given = Arguments.parse([flag, "lots"])
    with pytest.raises(ArgumentError, match=f"{flag} lots"):
        given.integer(flag)
    with pytest.raises(ArgumentError, match=f"{flag} lots"):
        given.number(flag)


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_value_without_a_size_is_no_number(value):
    given = Arguments.parse(["--max-model-len", value])
    with pytest.raises(ArgumentError, match=value):
        given.integer("--max-model-len")
    with pytest.raises(ArgumentError, match=value):
        given.number("--max-model-len")
