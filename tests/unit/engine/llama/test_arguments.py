import pytest

from engine.llama.arguments import FLAGS, HIDDEN_VARIABLES, REFUSED_FLAGS, flags, integer, value


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (["-c", "512"], {"--ctx-size"}),
        (["--ctx-size", "512", "-np", "2"], {"--ctx-size", "--parallel"}),
        (["--ctx_size", "512"], {"--ctx-size"}),
        (["-no-kvu"], {"--kv-unified"}),
        (["--kv-unified", "-c", "1"], {"--kv-unified", "--ctx-size"}),
        (["--flash-attn", "on", "--no-such"], set()),
        (["--no-slots"], {"--slots"}),
    ],
)
def test_flags_are_known_by_all_their_names(args: list[str], found: set[str]) -> None:
    assert flags(args) == found


def test_a_value_that_is_a_flags_name_is_a_value() -> None:
    assert flags(["--chat-template-file", "--port"]) == {"--chat-template-file"}


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert integer(["-c", "512", "--ctx-size", "1024"], "--ctx-size") == 1024
    assert value(["-t", "2"], "--ctx-size") is None


@pytest.mark.parametrize("args", [["-c", "many"], ["-c"], []])
def test_a_number_that_is_none_is_left_to_the_server_to_refuse(args: list[str]) -> None:
    assert integer(args, "--ctx-size") is None


def test_what_is_refused_is_a_flag_and_says_what_to_use() -> None:
    assert REFUSED_FLAGS.keys() <= {flag.name for flag in FLAGS}
    assert all(REFUSED_FLAGS.values())
    assert all(name.startswith("LLAMA_") for name in HIDDEN_VARIABLES)
