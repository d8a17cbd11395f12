import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.processes import answers, child, cpu_seconds, on_cores, resident, sockets, split_cores
from tests.ports import free_port

BURN = "import time\nwhile time.process_time() < {}: pass\n"
NESTED = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(0.3)!r}])\ninput()"


def test_cpu_counts_descendants_that_have_ended():
    with subprocess.Popen([sys.executable, "-c", BURN.format(0.3) + NESTED + "\n"], stdin=subprocess.PIPE) as process:
        while cpu_seconds(process.pid) < 0.5:
            assert process.poll() is None
        process.communicate(b"\n")
    assert process.returncode == 0


async def test_a_process_that_dies_is_reported_with_its_last_words(tmp_path: Path):
    log = tmp_path / "log"
    script = "raise SystemExit('no such thing')"
    with child([sys.executable, "-c", script], None, log) as process, pytest.raises(RuntimeError, match="no such"):
        await answers(f"http://127.0.0.1:{free_port()}/health", process, log)


def test_a_child_ends_with_its_block(tmp_path: Path):
    with child([sys.executable, "-c", "import time; time.sleep(60)"], 0, tmp_path / "log") as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_a_child_that_begins_on_some_cores_stays_there_and_we_do_not():
    before = os.sched_getaffinity(0)
    ask = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
    with on_cores({min(before)}):
        said = subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said == f"{min(before)}\n"
    assert os.sched_getaffinity(0) == before


def test_what_measures_has_the_last_core_and_what_is_measured_the_others():
    with on_cores({min(os.sched_getaffinity(0))}):
        of_measured, of_measurer = split_cores()
        assert of_measured == [of_measurer]
    of_measured, of_measurer = split_cores()
    assert {*of_measured, of_measurer} == os.sched_getaffinity(0)
    assert len(os.sched_getaffinity(0)) == 1 or of_measurer not in of_measured


def test_memory_and_sockets_are_those_of_the_process():
    memory, before = resident(os.getpid()), sockets(os.getpid())
    grown = bytearray(64 * 2**20)
    with socket.socket():
        assert sockets(os.getpid()) == before + 1
    assert resident(os.getpid()) > memory + len(grown) // 2
    assert sockets(os.getpid()) == before
