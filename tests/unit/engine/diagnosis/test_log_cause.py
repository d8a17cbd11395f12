import json
import signal
import time

import pytest

from engine.diagnosis.log_cause import ENOUGH_OF_A_LINE, diagnose, read_log
from engine.diagnosis.sign import Kind

TAIL = [
    "(EngineCore pid=2) ERROR 11-20 18:11:05 [core.py:1510] EngineCore failed to start.",
    "Traceback (most recent call last):",
    "Exception: WorkerProc initialization failed due to an exception in a background process.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]
BANNER = "(APIServer pid=1) INFO 11-20 18:10:00 [api_utils.py:1] vLLM API server version 0.32.0"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SAMPLER = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
NCCL = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error"
MOON = "ValueError: the moon is in the wrong house"
PORT = "OSError: [Errno 98] Address already in use"
HEADS = "ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3)."
FROM = "The above exception was the direct cause of the following exception:"
TRACE = "Traceback (most recent call last):"
DEAD = "ERROR 11-20 18:15:59 [x.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def by(process: str, *lines: str) -> list[str]:
    return [f"({process} pid=7) ERROR 11-20 18:11:05 [x.py:63] {line}" for line in lines]


SEVERAL = {
    "of two causes the first": ([HEADS, PORT], "heads not divisible"),
    "and the other way round": ([PORT, HEADS], "port taken"),
    "a cause before an effect": ([OOM, HEADS], "heads not divisible"),
    "an error that says more than the one it was raised from": (
        [TRACE, OOM, "", FROM, "", TRACE, SAMPLER],
        "out of memory warming up",
    ),
    "of two effects the first": ([NCCL, OOM], "NCCL failed"),
    "and the other way round ": ([OOM, NCCL], "GPU out of memory"),
    "an effect before the tail": ([DEAD, OOM], "GPU out of memory"),
    "one rank's out-of-memory before the other ranks' NCCL": (
        by("Worker_TP0", TRACE, OOM) + by("Worker_TP1", TRACE, NCCL),
        "GPU out of memory",
    ),
    "ranks that speak at once": (
        [
            *by("Worker_TP0", TRACE),
            *by("Worker_TP1", TRACE),
            *by("Worker_TP0", '  File "w.py", line 1, in load_model'),
            *by("Worker_TP1", '  File "w.py", line 1, in execute_model'),
            *by("Worker_TP1", OOM),
            *by("Worker_TP0", OOM),
        ],
        "out of memory at work",
    ),
    "an error nobody knows before an effect": ([MOON, NCCL], ""),
    "a hint is no reason to die": (
        ["INFO 11-20 18:15:59 [cuda.py:234] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.", MOON],
        "",
    ),
    "a refused request is no reason to die": (
        ["ERROR 11-20 18:11:38 [c.py:1] ValueError: This model's maximum context length is 1024 tokens.", DEAD],
        "died without a word",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL)
def test_of_several_errors_the_telling_one_counts_then_the_first(case: str) -> None:
    lines, sign = SEVERAL[case]
    found = diagnose([*lines, *TAIL], 1)
    assert found.sign == sign
    if not sign:
        assert found.cause == f"It ended with exit code 1: {MOON}"


def test_an_effect_shows_the_error_it_was_raised_from() -> None:
    effect = "RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer"
    found = diagnose([TRACE, MOON, "", FROM, "", TRACE, effect, *TAIL], 1)
    assert found.kind is Kind.TOKENIZER
    assert found.evidence == MOON
    unrelated = diagnose([TRACE, MOON, "INFO: in between", TRACE, effect, *TAIL], 1)
    assert unrelated.cause.endswith(MOON)


def test_an_unknown_failure_shows_the_first_real_error() -> None:
    log = [
        "(APIServer pid=1) WARNING 11-20 18:09:16 [x.py:255] This can cause errors like `OSError: [Errno 24] Too many",
        "(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63] Traceback (most recent call last):",
        "(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63]     raise ValueError(",
        f"(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63] {MOON}",
        "(EngineCore pid=2) ERROR 11-20 18:11:06 [x.py:9] RuntimeError: Worker failed with error 'the moon'",
        *TAIL,
    ]
    assert diagnose(log, 1).cause == f"It ended with exit code 1: {MOON}"


def test_a_bare_assertion_is_shown_by_what_it_asserts() -> None:
    log = [TRACE, '  File "x.py", line 1, in y', "    assert self.moon == self.house", "AssertionError", *TAIL]
    assert diagnose(log, 1).cause == "It ended with exit code 1: AssertionError: assert self.moon == self.house"


def test_source_code_in_a_traceback_is_not_what_was_said() -> None:
    log = [TRACE, "    raise ValueError('No available memory for the cache blocks')", MOON]
    assert diagnose(log, 1).cause == f"It ended with exit code 1: {MOON}"


def test_a_validation_error_is_shown_by_its_sentence() -> None:
    log = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, a thing is wrong [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
    ]
    assert diagnose(log, 1).cause == "It ended with exit code 1: Value error, a thing is wrong"


def test_a_kill_is_not_blamed_on_an_old_error() -> None:
    found = diagnose(["ValueError: of some request, long ago"], -signal.SIGKILL)
    assert "SIGKILL" in found.cause
    assert found.kind is Kind.DEATH
    assert not found.permanent


def test_a_crash_after_an_error_is_blamed_on_the_error() -> None:
    assert diagnose([NCCL], -signal.SIGABRT).sign == "NCCL failed"
    assert diagnose([], -signal.SIGBUS).sign == "bus error"
    assert "SIGABRT" in diagnose([], -signal.SIGABRT).cause


def test_a_program_that_says_nothing() -> None:
    assert str(diagnose([], 3)) == "It ended with exit code 3."


def test_a_file_of_several_starts_tells_of_the_last_one() -> None:
    (found,) = read_log([BANNER, PORT, *TAIL, BANNER, HEADS, *TAIL])
    assert found.sign == "heads not divisible"
    assert read_log([BANNER, PORT, *TAIL, BANNER, "INFO:     Application startup complete."]) == []


def test_a_file_of_several_engines_tells_of_each() -> None:
    one, other = read_log(
        [
            f"engine a/0 | {BANNER}",
            f"engine a/1 | {BANNER}",
            f"engine a/1 | 2026-01-02T03:04:05.678Z {PORT}",
            f"engine a/0 | {HEADS}",
        ]
    )
    assert one.cause.startswith("engine a/0: The model's 4 attention heads")
    assert other.cause.startswith("engine a/1: The engine's port is taken")


def test_a_file_tells_hints_beside_the_failure_each_once() -> None:
    hint = "INFO 11-20 18:15:59 [cuda.py:234] Cannot use FlashAttention-2 backend for Volta and Turing GPUs."
    told = read_log([hint, hint, MOON])
    assert [found.sign for found in told] == ["", "FlashAttention ruled out"]
    assert told[0].cause == f"The first error of the log: {MOON}"


def test_a_file_that_says_nothing_bad_tells_nothing() -> None:
    assert read_log([BANNER, "INFO 11-20 18:15:59 [x.py:1] fine", ""]) == []


def test_what_kvgate_writes_as_json_is_read_as_well() -> None:
    def line(program: str, text: str, name: str = "line") -> str:
        return json.dumps({"timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "program": program, name: text})

    (found,) = read_log(
        [
            '{"event":"listening","level":"info"}',
            line("engine a", "engine a: starting", "event"),
            *(line("engine a", text) for text in (BANNER, PORT, *TAIL)),
            line("engine b", BANNER),
        ]
    )
    assert found.cause.startswith("engine a: ")
    assert found.sign == read_log([BANNER, PORT, *TAIL])[0].sign


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("text", ["0", "a.b.c.", "Error"])
def test_the_longest_log_that_is_kept_is_read_in_bounded_time(text: str, *, served: bool) -> None:
    """It takes ten times as long where a sign looks from each character at all that follow."""
    line = (text * ENOUGH_OF_A_LINE)[:ENOUGH_OF_A_LINE]
    began = time.process_time()
    diagnose([line] * 2_000, 1, served=served)
    assert time.process_time() - began < 3


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert diagnose([], -40).cause == "It was ended by signal 40."


def test_a_line_of_json_that_is_nested_too_deeply_is_read_as_text() -> None:
    assert read_log(['{"program":"x","line":' + 200_000 * "["]) == []
