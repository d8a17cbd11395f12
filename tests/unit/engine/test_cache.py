import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import cache
from engine.cache import MARKER, SetupError, StepError, cache_folder, made_once, require_space, run_step


def make(folder: Path) -> None:
    (folder / "thing").write_text("made")


def once(folder: Path, making: object = make) -> list[str]:
    said: list[str] = []
    made_once(folder, making, what="the thing", progress=said.append)
    return said


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"KVGATE_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/kvgate")),
        ({}, Path.home() / ".cache/kvgate"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], folder: Path) -> None:
    assert cache_folder(environ) == folder


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    once(tmp_path / "deep" / "x")
    (tmp_path / "deep" / "x" / "thing").write_text("used")
    once(tmp_path / "deep" / "x")
    assert (tmp_path / "deep" / "x" / "thing").read_text() == "used"


def test_what_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "rest").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once(tmp_path / "x", interrupted)
    once(tmp_path / "x")
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == [MARKER, "thing"]


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    script = """if True:
        import sys, pathlib
        from engine.cache import made_once
        def make(folder):
            with (folder.parent / "log").open("a") as log: log.write("x")
            print("making", flush=True); sys.stdin.read()
        made_once(pathlib.Path(sys.argv[1]), make, what="it", progress=lambda line: print(line, flush=True))
    """
    argv = [sys.executable, "-c", script, str(tmp_path / "x")]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        says = {first.stdout.readline(), second.stdout.readline()}
        assert says == {"making\n", "it: another process is making it, waiting for that\n"}
        for process in (first, second):
            assert process.stdin is not None
            process.stdin.close()
    assert (tmp_path / "log").read_text() == "x"


def test_a_cache_that_cannot_be_written_is_said_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"Not a directory|File exists") as caught:
        once(tmp_path / "file" / "x")
    assert "KVGATE_CACHE" in caught.value.remedy


def test_too_small_a_disk_is_said_before_it_is_full(tmp_path: Path) -> None:
    require_space(tmp_path, 1, "it")
    with pytest.raises(SetupError, match=r"needs 1000000000\.0 GB"):
        require_space(tmp_path, 10**18, "it")


def test_a_step_shows_its_start_its_life_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "HEARTBEAT", 0.05)
    said: list[str] = []
    code = "import time; print('Downloading torch', flush=True); time.sleep(0.4); print('half\\rwhole', end='')"
    output = run_step([sys.executable, "-S", "-c", code], what="installing", progress=said.append)
    assert output.splitlines() == ["Downloading torch", "half", "whole"]
    assert said[0] == "installing ..."
    assert any(line.endswith("Downloading torch") for line in said)
    assert said[-1].startswith("installing: done in")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("print('WARNING: x'); print('ERROR: no wheel'); print('ERROR: hint'); raise SystemExit(1)", "ERROR: no wheel"),
        ("raise ValueError('of the script')", "ValueError: of the script"),
        ("raise SystemExit(1)", "it printed nothing"),
    ],
)
def test_a_failed_step_says_why(code: str, reason: str) -> None:
    with pytest.raises(StepError) as caught:
        run_step([sys.executable, "-S", "-c", code], what="it", progress=lambda _: None)
    assert caught.value.reason() == reason


def test_a_step_that_cannot_be_started_says_why() -> None:
    with pytest.raises(StepError, match="No such file or directory"):
        run_step(["/nowhere/at/all"], what="it", progress=lambda _: None)


def test_a_step_ends_with_the_process_that_waits_for_it() -> None:
    """As when pip, which has children of its own, runs while kvgate is killed."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    script = """if True:
        import sys
        from engine import cache
        cache.HEARTBEAT = 0.05
        say = lambda line: print(line, flush=True)
        cache.run_step([sys.executable, "-S", "-c", *sys.argv[1:]], what="it", progress=say)
    """
    argv = [sys.executable, "-c", script, child, sleeps]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = next(int(line.split()[-1]) for line in parent.stdout if line.split()[-1].isdigit())
        parent.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
