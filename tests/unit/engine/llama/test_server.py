"""The arguments of the server in this process: the program's own, refused in the program's words."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.llama.kind import LLAMA_SERVER
from engine.llama.server import OPTIONS, ArgumentError, fields
from engine.plan.llama.settings import LlamaSettings


def test_flags_set_the_parameters_by_all_their_names() -> None:
    assert fields(["-m", "m.gguf", "--alias", "a,b", "--host", "::1", "--port", "1", "-c", "512"]) == {
        "model.path": "m.gguf",
        "model_alias": {"a", "b"},
        "hostnames": ["::1"],
        "port": 1,
        "n_ctx": 512,
    }
    assert fields(["--ctx_size", "1", "--ctx-size", "2"]) == {"n_ctx": 2}


def test_switches_are_turned_on_and_off() -> None:
    assert fields(["--kv-unified"]) == {"kv_unified": True}
    assert fields(["-kvu", "-no-kvu"]) == {"kv_unified": False}
    assert fields(["--no-warmup", "--fit", "off"]) == {"warmup": False, "fit_params": False}


def test_what_is_about_cards_changes_nothing_where_there_are_none() -> None:
    assert fields(["--device", "none", "--n-cpu-moe", "4", "--cpu-moe"]) == {}
    with pytest.raises(ArgumentError, match='argument "--device": invalid device: CUDA0'):
        fields(["--device", "CUDA0"])


def test_threads_for_a_batch_are_those_for_a_token_unless_they_are_given() -> None:
    assert fields(["-t", "2"]) == {"cpuparams.n_threads": 2, "cpuparams_batch.n_threads": 2}
    assert fields(["-t", "2", "-tb", "4"])["cpuparams_batch.n_threads"] == 4


def test_a_template_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert fields(["--chat-template-file", str(file)]) == {"chat_template": "{{ messages }}"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--no-such-flag"], "error: invalid argument: --no-such-flag"),
        (["m.gguf"], "error: invalid argument: m.gguf"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "many"], 'error while handling argument "-c": invalid literal'),
        (["-ctk", "q9_9"], 'error while handling argument "-ctk": Unsupported cache type: q9_9'),
        (["-fa", "maybe"], "unknown value for --flash-attn: 'maybe'"),
        (["--chat-template-file", "/no/such"], "error: failed to open file '/no/such'"),
    ],
)
def test_what_cannot_be_used_is_refused_as_the_program_refuses_it(args: list[str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        fields(args)


def test_it_ends_as_the_program_does() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "engine.llama.server", "--no-such-flag"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "error: invalid argument: --no-such-flag\n")


def test_all_that_kvgate_gives_a_llama_server_is_known_here() -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="there is no build of it here", exc_type=ImportError)
    planned = LlamaSettings(
        gpu_layers=0, context=512, cache_type_k="q8_0", cache_type_v="q8_0", kv_on_host=True, host_experts=1, threads=2
    )
    chosen = fields([*planned.arguments(), "--cache-ram", "0", LLAMA_SERVER.template_flag, __file__])
    assert (chosen["n_ctx"], chosen["fit_params"]) == (512, False)
    params = xllamacpp.CommonParams()
    for path in {path for option in OPTIONS for path in option.sets}:
        target = params
        for name in path.split("."):
            target = getattr(target, name)  # a release without it would be an AttributeError
