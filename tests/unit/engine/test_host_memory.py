import os

import pytest

from engine.host_memory import free_bytes, total_bytes


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 2048 * 1024), ("max", 2048 * 1024), ("1000000", 1_000_000 - 900_000 + 200_000)]
)
def test_the_smaller_of_what_the_machine_and_the_container_have_counts(tmp_path, limit, expected):
    (tmp_path / "meminfo").write_text("MemTotal:       4096 kB\nMemAvailable:   2048 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text("900000\n")
        (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    assert free_bytes(tmp_path / "meminfo", tmp_path) == expected


def test_this_machine_has_some():
    assert free_bytes() > 0


@pytest.mark.parametrize(("limit", "memory"), [("1073741824\n", 2**30), ("max\n", 7 * 2**30), (None, 7 * 2**30)])
def test_a_containers_limit_counts_as_its_memory(limit, memory, tmp_path, monkeypatch):
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 7 * 2**30 // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert total_bytes(tmp_path) == memory
