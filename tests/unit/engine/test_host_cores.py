import os

import pytest

from engine.host_cores import are_wide, cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Four hardware threads on two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    return tmp_path


def test_threads_of_one_core_count_once(machine):
    assert cores(machine, machine) == 2


def test_where_nobody_says_each_thread_counts(machine, tmp_path):
    assert cores(tmp_path / "none", machine) == 4


@pytest.mark.parametrize(("quota", "expected"), [("50000 100000", 1), ("150000 100000", 2), ("max 100000", 2), ("", 2)])
def test_a_containers_quota_bounds_them(machine, quota, expected):
    (machine / "cpu.max").write_text(quota)
    assert cores(machine, machine) == expected


def test_cores_are_wide_if_the_kernel_says_so(tmp_path):
    said = tmp_path / "cpuinfo"
    said.write_text("processor : 0\nflags : fpu avx2 avx512f\n")
    assert are_wide(said)
    said.write_text("processor : 0\nmodel name : avx512f\nflags : fpu avx2\n")
    assert not are_wide(said)
    assert not are_wide(tmp_path / "none")
