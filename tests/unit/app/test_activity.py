import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from engine.gpu import Gpu, Holder
from gateway.app import activity
from gateway.app.activity import WINDOW, Activity
from tests.clock import Clock

LISTENS = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
SPINS, SLEEPS = "while True: pass", "import time; time.sleep(60)"


class Proc:
    """Processes as the kernel shows them; each is its parent's id and its ticks of CPU time."""

    def __init__(self, folder):
        self.folder = folder

    def put(self, pid, parent, ticks):
        (self.folder / str(pid)).mkdir(exist_ok=True)
        # A name may hold anything, blanks and brackets too.
        (self.folder / str(pid) / "stat").write_text(f"{pid} (a) b (c) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20")


@pytest.fixture
def proc(tmp_path):
    made = Proc(tmp_path)
    (tmp_path / "self").mkdir()
    made.put(1, 0, 5_000)
    made.put(10, 1, 100)  # listens
    made.put(11, 10, 100)
    made.put(12, 11, 100)
    return made


@pytest.fixture
def seen(proc, monkeypatch):
    """An activity of process 10, and its clock."""
    clock = Clock()
    monkeypatch.setattr("engine.diagnosis.look.listener", lambda port: SimpleNamespace(pid=10))
    monkeypatch.setattr(activity, "gpus", tuple)
    return Activity("127.0.0.1:8000", clock, proc.folder), clock


async def test_the_first_look_finds_nothing_out(seen):
    looked, _ = seen
    assert await looked.look() is None


@pytest.mark.parametrize(("ticks", "busy"), [(0, False), (9, False), (11, True), (100, True)])
@pytest.mark.parametrize("pid", [10, 12])
async def test_cpu_time_of_a_process_and_its_children_is_work(seen, proc, pid, ticks, busy):
    looked, clock = seen
    await looked.look()
    clock.now += 1
    proc.put(pid, pid - 1 if pid > 10 else 1, 100 + ticks)
    assert await looked.look() is busy


async def test_work_of_a_moment_ago_counts_for_a_while_and_then_no_more(seen, proc):
    looked, clock = seen
    await looked.look()
    proc.put(11, 10, 150)
    found = []
    for _ in range(2 * int(WINDOW)):
        clock.now += 1
        found.append(await looked.look())
    assert found[:5] == [True] * 5, "half a second of five"
    assert found[5:] == [False] * 15


async def test_cpu_time_of_others_is_not(seen, proc):
    looked, clock = seen
    await looked.look()
    clock.now += 1
    proc.put(1, 0, 9_000)
    assert await looked.look() is False


@pytest.mark.parametrize(
    ("use", "holder", "busy"), [(0.9, 12, True), (0.9, 1, False), (0.05, 12, False), (None, 12, False)]
)
async def test_use_of_its_own_gpu_is_work(seen, monkeypatch, use, holder, busy):
    looked, clock = seen
    monkeypatch.setattr(activity, "gpus", lambda: (Gpu(3, "H200", 10, 5, use),))
    monkeypatch.setattr(activity, "holders", lambda index: (Holder(holder, 5),) if index == 3 else ())
    await looked.look()
    clock.now += 1
    assert await looked.look() is busy


async def test_a_driver_that_is_stuck_keeps_nobody_waiting(seen, monkeypatch):
    """As of a GPU whose firmware answers no more: its engine hangs, and whoever asks for the GPU does."""
    looked, clock = seen
    answers, asked = threading.Event(), []
    monkeypatch.setattr(activity, "LOOK_TIMEOUT", 0.01)
    monkeypatch.setattr(activity, "gpus", lambda: asked.append(1) or (answers.wait() and ()))
    await looked.look()
    clock.now += 1
    async with asyncio.timeout(30):
        try:
            assert [await looked.look() for _ in range(9)] == [None] * 9
            assert asked == [1], "one thread waits"
        finally:
            answers.set()
        while await looked.look() is None:
            pass
        assert await looked.look() is False


async def test_what_runs_elsewhere_and_what_is_gone_cannot_be_seen(seen, proc, monkeypatch):
    looked, clock = seen
    assert await Activity("10.0.0.7:8000", clock, proc.folder).look() is None
    assert await Activity("127.0.0.1:8000", clock, proc.folder / "none").look() is None
    await looked.look()
    monkeypatch.setattr("engine.diagnosis.look.listener", lambda port: None)
    for file in proc.folder.glob("10/*"):
        file.unlink()
    assert await looked.look() is None


@pytest.mark.parametrize(("work", "busy"), [(SPINS, True), (SLEEPS, False)])
async def test_a_real_process_is_found_by_its_port(work, busy):
    code = LISTENS + CHILD.replace("sys.argv[1]", repr(work))
    argv = [sys.executable, "-c", code]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0)  # noqa: ASYNC220
    try:
        looked = Activity(f"127.0.0.1:{int(process.stdout.readline())}", time.monotonic)
        assert await looked.look() is None
        async with asyncio.timeout(30):  # how long an interpreter takes to start, and that it computes meanwhile
            found = not busy
            while found is not busy:
                await asyncio.sleep(0.2)
                found = await looked.look()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
