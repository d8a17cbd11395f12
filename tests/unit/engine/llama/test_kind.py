"""llama-server as a kind of engine: its command line, what its gateway has to know, and the phases of its start."""

from pathlib import Path

import pytest

from engine.diagnosis.log_cause import diagnose
from engine.llama.kind import LLAMA_SERVER
from engine.memory_ladder import Bounds, Stop, next_rung
from engine.phases import StartProgress
from engine.spec import EngineSpec, argv

# A start of the program and one of the package, shortened to the lines around those that matter.
PROGRAM = """\
0.00.005.738 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.007.895 I srv    load_model: loading model '/models/m.gguf'
0.01.114.854 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 2048, kv_unified = 'true'
0.01.117.691 I srv  llama_server: server is listening on http://127.0.0.1:18099
"""
PACKAGE = """\
0.00.013.112 I srv          init: loading model
0.00.013.176 I srv    load_model: loading model '/models/m.gguf'
0.01.114.854 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 2048, kv_unified = 'true'
0.01.117.691 I srv          init: listening on http://127.0.0.1:18099
"""


def spec(*args: str) -> EngineSpec:
    return EngineSpec(LLAMA_SERVER, "m", "/models/m.gguf", "chat", 18000, Path("/bin/llama-server"), args=args)


def test_its_command_line_names_file_and_model() -> None:
    assert argv(spec("-c", "512")) == (
        *("/bin/llama-server", "--model", "/models/m.gguf", "--alias", "chat"),
        *("--host", "127.0.0.1", "--port", "18000", "-c", "512"),
    )


@pytest.mark.parametrize("start", [PROGRAM, PACKAGE])
def test_a_start_is_told_phase_by_phase(start: str) -> None:
    following = StartProgress(LLAMA_SERVER.phases)
    told = [progress for line in start.splitlines() if (progress := following.read(line))]
    assert [str(progress) for progress in told] == [
        "loading weights",
        "sizing the KV cache: 2048 tokens for a slot",
        "serving: http://127.0.0.1:18099",
    ]


@pytest.mark.parametrize(("args", "tokens"), [(["-c", "16384"], 16384), (["-c", "0"], None), ([], None)])
def test_its_gateway_is_told_the_cache_of_all_slots_and_no_tokenizer(args: list[str], tokens: int | None) -> None:
    known = LLAMA_SERVER.fronted("/models/m.gguf", args)
    assert (known.tokenizer, known.max_num_seqs, known.kv_tokens) == (None, None, tokens)


def test_its_template_is_the_one_it_was_given() -> None:
    assert LLAMA_SERVER.fronted("m.gguf", ["--chat-template-file", "chat.jinja"]).chat_template == "chat.jinja"


def test_what_kvgate_chooses_leaves_what_the_user_chose() -> None:
    added = [word for fill in LLAMA_SERVER.filled("m.gguf", ["-c", "512"], (), False, 1) for word in fill.args]
    assert "--parallel" in added
    assert "--ctx-size" not in added


def test_one_that_does_not_fit_is_not_tried_with_less_since_its_gateway_knows_its_cache() -> None:
    full = diagnose(["E ggml_aligned_malloc: insufficient memory (attempted to allocate 1440.00 MB)"], 1)
    assert isinstance(next_rung(full, Bounds(), [], LLAMA_SERVER.ladder), Stop)
