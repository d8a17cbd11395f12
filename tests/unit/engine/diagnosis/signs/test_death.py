"""How an engine's process died, as its parent or the kernel says."""

import signal

import pytest

from engine.diagnosis.log_cause import diagnose
from engine.diagnosis.sign import Kind

DEAD = "ERROR 11-20 18:15:59 [x.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."


def test_an_engine_process_that_died_without_a_word() -> None:
    # What the API server of 0.32 prints after a kill -9 of its EngineCore; it then exits with 0.
    assert diagnose([DEAD], 0).sign == "died without a word"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting", "was killed (SIGKILL)"),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -11), shutting", "was killed (SIGSEGV)"),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: 1), shutting", "ended with exit code 1"),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -99), shutting", "ended with exit code -99"),
        ("Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "died"),
    ],
)
def test_a_worker_died_as_its_exit_code_says_if_there_is_one(said: str, cause: str) -> None:
    assert diagnose([f"ERROR 11-20 18:15:59 [x.py:316] {said}"], 0).cause == f"The worker VllmWorker-1 {cause}."


@pytest.mark.parametrize(
    ("number", "name", "permanent"),
    [
        (signal.SIGKILL, "SIGKILL", False),
        (signal.SIGBUS, "SIGBUS", False),
        (signal.SIGSEGV, "SIGSEGV", False),
        (signal.SIGILL, "SIGILL", True),
    ],
)
def test_a_signal_is_told_with_its_name_and_a_way_out(number: signal.Signals, name: str, *, permanent: bool) -> None:
    found = diagnose([], -number)
    assert f"({name})" in found.cause
    assert found.remedy
    assert (found.kind, found.permanent) == (Kind.DEATH, permanent)


def test_an_effect_before_it_says_more_than_the_death_of_a_worker() -> None:
    log = [
        "(Worker_TP1 pid=3) ERROR 11-20 18:15:50 [w.py:1] torch.OutOfMemoryError: CUDA out of memory.",
        "(EngineCore pid=2) ERROR 11-20 18:15:59 [x.py:316] Worker proc VllmWorker-1 died unexpectedly (exit code: 1),",
        DEAD,
    ]
    assert diagnose(log, 1).kind is Kind.MEMORY
