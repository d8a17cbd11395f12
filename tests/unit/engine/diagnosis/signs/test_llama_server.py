"""A llama-server's log: its cause is told among its repeats, and a hint of one that serves."""

import signal

import pytest

from engine.diagnosis.log_cause import diagnose, read_log
from engine.diagnosis.sign import Kind

INFO = "0.00.003.355 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)"
READY = "0.01.117.691 I srv          init: listening on http://127.0.0.1:18099"
KILLED = "0.02.117.691 E srv    send_error: task id = 5, error: Context size has been exceeded."
DAMAGED = [
    INFO,
    "0.00.010.137 E gguf_init_from_reader: this GGUF file is version 9 but this software only supports up to version 3",
    "0.00.010.138 E gguf_init_from_reader: failed to read header",
    "0.00.010.279 E llama_model_load: error loading model: llama_model_loader: failed to load model from v9.gguf",
    "0.00.011.160 E srv  llama_server: exiting due to model loading error",
]


def test_what_names_the_cause_comes_before_what_follows_from_it() -> None:
    found = diagnose(DAMAGED, 1)
    assert (found.sign, found.kind, found.permanent) == ("GGUF version", Kind.MODEL, True)
    assert found.cause == "The model's file is of GGUF version 9, which this llama-server does not read."


def test_an_error_of_loading_that_nobody_knows_is_shown_as_it_is() -> None:
    said = "0.00.010.279 E llama_model_load: error loading model: the moon is in the wrong house"
    assert diagnose([INFO, said], 1).cause == "The model cannot be loaded: the moon is in the wrong house."


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("stoi", "The argument -c has a value that llama-server does not take: a number is expected."),
        ("too large", "The argument -c has a value that llama-server does not take: too large."),
    ],
)
def test_a_number_that_is_none_is_told_in_words(value: str, cause: str) -> None:
    assert diagnose([f'error while handling argument "-c": {value}'], 1).cause == cause


def test_a_processor_that_lacks_an_instruction_is_told_of_the_build() -> None:
    found = diagnose([INFO], -signal.SIGILL)
    assert "llama.cpp may be built for one machine only" in found.remedy


def test_doctor_reads_its_log_and_tells_only_the_last_start() -> None:
    assert [found.sign for found in read_log(DAMAGED)] == ["GGUF version"]
    assert [found.sign for found in read_log([*DAMAGED, INFO, READY])] == []
    assert [found.sign for found in read_log([INFO, READY, KILLED])] == ["requests killed for KV cache"]
