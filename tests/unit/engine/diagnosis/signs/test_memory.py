"""The figures of a memory failure, and what they say to do."""

import pytest

from engine.diagnosis.log_cause import diagnose
from engine.diagnosis.sign import Kind
from tests.unit.engine.diagnosis.texts import TEXTS, diagnosed


@pytest.mark.parametrize(
    ("name", "part", "remedy"),
    [
        ("GPU memory taken by others", "31.4/79.2", "--gpu-memory-utilization 0.39"),
        ("GPU memory taken by others", "10.19/23.53", "--gpu-memory-utilization 0.43"),
        ("host memory under the KV cache", "14.8/16.21", "VLLM_CPU_KVCACHE_SPACE to at most 14"),
        ("host memory under the wanted share", "12.11/13.46", "--gpu-memory-utilization 0.89"),
        ("context over the KV cache", "(2048)", "--max-model-len 384"),
        ("context over the KV cache, in tokens", "(4096)", "--max-model-len 3664"),
        ("out of memory warming up", "1024", "--max-num-seqs 512"),
        (
            "out of memory loading",
            "11.31 GiB",
            "36.25 MiB more must be free on GPU 0. This process holds 11.31 GiB of its",
        ),
        ("out of memory allocating the KV cache", "1.06 GiB", "143.36 MiB more must be free"),
        ("out of memory allocating the KV cache", "1.06 GiB", "0.01 of --gpu-memory-utilization, 0.91 where"),
        ("out of memory at work", "9.98 GiB", "Others hold 9.98 GiB of its 79.15 GiB, this process 68.97 GiB"),
        ("out of memory at work", "9.98 GiB", "--gpu-memory-utilization may be 0.87 at most"),
        ("out of memory at work", "9.98 GiB", "1.80 GiB more must be free on GPU 0"),
        ("out of memory at work", "9.98 GiB", "That is 0.03 of --gpu-memory-utilization, 0.89 where"),
        ("out of memory at work", "2.31 GiB", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ],
)
def test_a_remedy_has_the_number_that_follows_from_the_log(name: str, part: str, remedy: str) -> None:
    assert remedy in diagnosed(name, part).remedy


@pytest.mark.parametrize(
    ("name", "part", "clause"),
    [
        (
            "out of memory loading",
            "224.00 MiB",
            "asked for 224.00 MiB, and 187.75 MiB of 11.53 GiB were free on GPU 0",
        ),
        ("GPU out of memory", "1.63 GiB", "asked for 1.63 GiB, and 565.31 MiB of 44.56 GiB were free on GPU 0"),
        ("GPU out of memory", "3.50 GiB", "asked for 3.50 GiB, and 3.09 GiB of 23.69 GiB were free on GPU 0"),
    ],
)
def test_out_of_memory_says_what_was_tried_and_what_was_free(name: str, part: str, clause: str) -> None:
    found = diagnosed(name, part)
    assert clause in found.cause
    assert "expandable_segments" not in found.remedy


def test_out_of_memory_without_figures_invents_none() -> None:
    found = diagnose(["torch.OutOfMemoryError: CUDA out of memory."], 1)
    assert found.cause == "The GPU ran out of memory."
    assert found.remedy.endswith("or --gpu-memory-utilization.")


def test_a_cache_in_main_memory_is_never_said_to_fit_with_nothing() -> None:
    """A space of 0 would mean a share of all memory."""
    said = (
        "ValueError: Available memory on node 0 (0.4/16.0 GiB) on kv cache allocation is less than requested memory "
        "for kv (4.0 GiB)"
    )
    assert "at most 1 (GiB)" in diagnose([said], 1).remedy


def test_what_a_launch_with_less_reads_is_there() -> None:
    for name in ("out of memory loading, as vLLM says", "out of memory loading"):
        assert diagnosed(name).facts["loading"]
    for text in TEXTS:
        if text["sign"] == "GPU memory taken by others":
            found = diagnose([text["text"]], 1)
            assert found.kind is Kind.MEMORY
            assert found.facts["device"]
