"""The sizes of a split that the log of several GPUs leads to, and what only looks like a failure of theirs."""

import pytest

from engine.diagnosis.log_cause import diagnose, read_log
from tests.unit.engine.diagnosis.texts import diagnosed


@pytest.mark.parametrize(
    ("name", "part", "remedy"),
    [
        ("heads not divisible", "heads (2)", "--tensor-parallel-size of 1, 2;"),
        ("more GPUs than there are", "(8)", "at most 4;"),
        ("more GPUs than there are", "=4", "at most 2;"),
    ],
)
def test_a_remedy_has_the_number_that_follows_from_the_log(name: str, part: str, remedy: str) -> None:
    assert remedy in diagnosed(name, part).remedy


@pytest.mark.parametrize(
    ("heads", "sizes"), [(12, "1, 2, 3, 4, 6, 12;"), (64, "1, 2, 4, 8, 16;"), (7, "1, 7;"), (1, "1;")]
)
def test_heads_are_split_over_every_size_that_divides_them_and_that_a_machine_has(heads: int, sizes: str) -> None:
    said = f"ValueError: Total number of attention heads ({heads}) must be divisible by tensor parallel size (5)."
    assert f"--tensor-parallel-size of {sizes}" in diagnose([said], 1).remedy


def test_a_group_that_lost_a_rank_may_find_it_at_the_next_start() -> None:
    lost = "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"
    assert not diagnose([lost], 1).permanent
    assert diagnose(["RuntimeError: CUDA error: invalid device ordinal"], 1).permanent


def test_a_bus_error_is_told_as_what_a_container_lacks() -> None:
    """A loader's process dies of it, which is one line in another's log."""
    (found,) = read_log(
        ["ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shm."]
    )
    assert found.sign == "too little shared memory"
    assert "--shm-size" in found.remedy
