import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from engine.diagnosis import look as looking
from engine.diagnosis.look import cards, corroborated, hub_cache, listener, look, on_its_way, starting, way_to
from engine.diagnosis.machine import Holder
from engine.diagnosis.sign import Diagnosis, Kind


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One GPU, with this process on it and one whose memory the driver does not tell."""
    ours, hidden = SimpleNamespace(pid=os.getpid(), usedGpuMemory=7), SimpleNamespace(pid=2**30, usedGpuMemory=None)

    def graphics(_: object) -> list[object]:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "H100",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=80, free=60),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [ours, hidden],
        "nvmlDeviceGetGraphicsRunningProcesses": graphics,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    return iter(())


def test_a_gpu_with_who_is_on_it(nvml: None) -> None:
    (card,) = cards()
    assert (card.total, card.free) == (80, 60)
    name = Path("/proc/self/comm").read_text().strip()
    assert card.holders == (Holder(os.getpid(), name, 7), Holder(2**30, "a process of another container", None))


def test_who_listens_on_a_port() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        assert listener(port) is None
        ours.listen()
        found = listener(port)
    assert found is not None
    assert (found.port, found.pid, found.is_kvgate) == (port, os.getpid(), False)


def test_what_lies_in_the_hub_cache(tmp_path: Path) -> None:
    model = tmp_path / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    (model / "snapshots" / "1").mkdir(parents=True)
    half = model / "blobs" / "abc.incomplete"
    half.write_bytes(b"12345")
    os.utime(half, (1000.0, 1000.0))
    (model / "blobs" / "def").write_bytes(b"1")
    (model / "snapshots" / "1" / "good").symlink_to(model / "blobs" / "def")
    (model / "snapshots" / "1" / "bad").symlink_to(model / "blobs" / "gone")
    found = hub_cache(tmp_path, now=1600.0)
    assert [(one.path, one.bytes, one.seconds_still) for one in found.downloads] == [(half, 5, 600.0)]
    assert found.broken == (model / "snapshots" / "1" / "bad",)
    assert found.locks == ()
    assert found.free


def test_locks_count_only_where_the_disk_cannot_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / ".locks" / "models--a--b" / "abc.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert hub_cache(tmp_path, now=0.0).locks == ()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert hub_cache(tmp_path, now=0.0).locks == (lock,)


def test_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    found = hub_cache(tmp_path / "none" / "hub", now=0.0)
    assert found.free
    assert not found.downloads


def test_the_limit_and_the_kills_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "memory.max": "1000000",
        "memory.current": "700000",
        "memory.stat": "anon 1\ninactive_file 100000",
        "memory.events": "low 0\noom_kill 3",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(looking, "_CGROUP", tmp_path)
    monkeypatch.setattr(
        looking, "_kernel_log", lambda: b"6,1;x\n3,2,3,-;Out of memory: Killed process 9 (VLLM::Worker)\n6,3;y\n"
    )
    seen = look({"HF_HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}, (), "here", now=0.0)
    assert (seen.memory, seen.available, seen.limited, seen.oom_kills) == (1000000, 400000, True, 3)
    assert seen.killed == "Out of memory: Killed process 9 (VLLM::Worker)"
    assert (seen.visible, seen.engine, seen.cache.folder) == ("1", "here", tmp_path / "hub")


def test_a_container_without_a_limit_has_the_machine_s_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("max")
    monkeypatch.setattr(looking, "_CGROUP", tmp_path)
    seen = look({"HF_HOME": str(tmp_path)}, (), "", now=0.0)
    assert seen.memory > seen.available > 0
    assert not seen.limited


def test_a_kill_of_long_ago_is_not_why_something_ends_now(monkeypatch: pytest.MonkeyPatch) -> None:
    log = (
        b"3,100,5000000,-;Out of memory: Killed process 7 (old)\n SUBSYSTEM=memory\n"
        b"6,101,9000000,-;something else\n"
        b"3,102,500000000,-;Memory cgroup out of memory: Killed process 9 (new)\n"
    )
    monkeypatch.setattr(looking, "_kernel_log", lambda: log)
    assert looking.killed_for_memory(6.0)[1] == "Memory cgroup out of memory: Killed process 9 (new)"
    assert looking.killed_for_memory(501.0)[1] == ""
    monkeypatch.setattr(looking, "_kernel_log", lambda: log.split(b"6,")[0])
    assert looking.killed_for_memory()[1] == "Out of memory: Killed process 7 (old)"


@pytest.mark.parametrize(
    ("found", "evidence"),
    [
        (Diagnosis("x", evidence="e", kind=Kind.MEMORY, facts={"gpu": "0"}), "e [memory is held now by "),
        (Diagnosis("x", evidence="e", kind=Kind.DEATH), "e [Killed process 9 (x)]"),
        (Diagnosis("x", kind=Kind.DEATH), "[Killed process 9 (x)]"),
        (Diagnosis("x", evidence="e", kind=Kind.MODEL), "e"),
    ],
)
def test_what_the_machine_knows_stands_beside_the_evidence(
    nvml: None, found: Diagnosis, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "killed_for_memory", lambda _since: (1, "Killed process 9 (x)"))
    assert corroborated(found).evidence.startswith(evidence)
    monkeypatch.setattr(looking, "killed_for_memory", lambda _since: (2, ""))
    monkeypatch.setattr(looking, "cards", tuple)
    more = " [2 processes were killed here for memory so far]" if found.kind is Kind.DEATH else ""
    assert corroborated(found).evidence == f"{found.evidence}{more}".strip()


def test_the_way_of_a_client_to_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        monkeypatch.setattr(looking, "starting", lambda at: iter(["process 9 (python)"] if at == port else []))
        refused = Diagnosis("x", "generic", "e", kind=Kind.CLIENT, facts={"host": "localhost", "port": str(port)})
        found = on_its_way(refused, {})
        assert f"e [port {port} is not open yet: process 9 (python) is starting; " in found.evidence
        assert found.remedy.startswith(f"Wait: the engine on port {port}")
        ours.listen()
        found = on_its_way(refused, {"http_proxy": "http://me:secret@proxy:3128"})
    assert f"port {port} is open here: " in found.evidence
    assert "secret" not in str(found)
    assert found.remedy == "Name localhost in NO_PROXY and no_proxy: a proxy stands between."


def test_a_server_elsewhere_is_not_looked_for_here() -> None:
    refused = Diagnosis("x", "generic", "e", kind=Kind.CLIENT, facts={"host": "gpu-1", "port": "8000"})
    assert on_its_way(refused, {}) == refused
    assert way_to("gpu-1", 8000, {}).looked_at == ()
    of_an_engine = Diagnosis("x", kind=Kind.NETWORK)
    assert on_its_way(of_an_engine, {"http_proxy": "http://proxy:3128"}) is of_an_engine


def test_an_engine_that_is_to_listen_on_a_port(tmp_path: Path) -> None:
    module = tmp_path / "vllm" / "entrypoints.py"
    module.parent.mkdir()
    module.write_text("import sys\nprint('here', flush=True)\nsys.stdin.read()\n")
    command = [sys.executable, "-m", "vllm.entrypoints", "--port", "7"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        (found,) = starting(7)
        assert found.startswith(f"process {engine.pid} (")
        assert list(starting(9)) == []
        engine.communicate()
