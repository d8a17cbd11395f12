"""kvgate as a person at a terminal meets it: Ctrl-C at any moment, and what there is to read."""

import contextlib
import itertools
import re
import socket
import threading
from pathlib import Path

import httpx
import pytest
import yaml

from engine.cache import MARKER
from tests.clock import unhindered
from tests.fakes.interpreter import made
from tests.integration.relaying import CHAT, body, fake_processes
from tests.integration.terminal import PATIENCE, kvgate
from tests.ports import free_port
from tests.unit.engine.processes import descendants, eventually, is_alive

pytestmark = pytest.mark.slow

INTERRUPTED = 130
TRACES = re.compile(r"Traceback|Error|Exception|Aborted|leaked")


@contextlib.contextmanager
def silent_server():
    """The address of one that takes connections and never answers, and what waits until it was asked for something."""
    with socket.socket() as listening, contextlib.ExitStack() as connections:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        listening.settimeout(PATIENCE)

        def asked():
            connection = connections.enter_context(listening.accept()[0])
            connection.settimeout(PATIENCE)
            assert connection.recv(1)

        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked


@pytest.fixture
def launched(tmp_path):
    """Arguments of `kvgate serve` with a fake that it launches, which gets these arguments; its port."""

    def configure(*args):
        port = free_port()
        pids = ["--fake-pids", str(tmp_path / "pids")]
        engine = {"model": "m", "python": str(made(tmp_path)), "args": [*pids, "--load-format=dummy", *args]}
        (tmp_path / "m").mkdir(exist_ok=True)
        (tmp_path / "m" / "config.json").write_text("{}")
        engine["model"] = str(tmp_path / "m")
        server = {"host": "127.0.0.1", "port": port}
        file = tmp_path / "kvgate.yaml"
        file.write_text(yaml.safe_dump({"server": server, "models": [{"name": "fake", "engine": engine}]}))
        return ("serve", "--config", file), port

    return configure


def engines(folder):
    return [int(line) for line in (folder / "pids").read_text().split()]


@contextlib.contextmanager
def streaming(port, tokens=4000):
    """A stream that runs through a kvgate, until the block ends or the kvgate does."""
    begun, stop = threading.Event(), threading.Event()

    def read():
        asked = body(stream=True, tokens=tokens)
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"http://127.0.0.1:{port}{CHAT}", json=asked, timeout=30) as answer,
        ):
            for _ in answer.iter_raw():
                begun.set()
                if stop.is_set():
                    return

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(120)
    try:
        yield
    finally:
        stop.set()
        reading.join()


@pytest.mark.parametrize(
    ("command", "library"),
    [
        # Each has imports of its own, and these libraries among them; no Python has them built in.
        *itertools.product(["serve m"], ["_contextvars", "uvloop", "pydantic_core", "httptools"]),
        *itertools.product(["plan m", "simulate --trace t"], ["_contextvars", "_zoneinfo"]),
        *itertools.product(["demo", "doctor", "advise"], ["_contextvars", "pydantic_core"]),
        ("serve --endpoint http://127.0.0.1:9", "httptools"),
    ],
)
def test_ctrl_c_while_it_is_being_imported_leaves_no_traceback(command, library, tmp_path):
    environ = {"KVGATE_CACHE": str(tmp_path)}
    with kvgate(*command.split(), environ=environ) as terminal:
        maps = Path(f"/proc/{terminal.process.pid}/maps")
        assert eventually(lambda: library in maps.read_text())
        terminal.press_ctrl_c()
        assert terminal.ended(5) == INTERRUPTED
        # A busy machine may have ended the import by then: what the command has said since is no fault.
        assert terminal.lines[-1] == "kvgate: interrupted"
        assert not TRACES.search(terminal.text)


@pytest.mark.parametrize(
    "command",
    [
        "plan owner/model",
        "serve owner/model",
        "doctor --url {url}",
        "doctor owner/model",
        "advise --url {url}",
    ],
)
def test_ctrl_c_while_another_machine_is_waited_for_is_one_line(command, tmp_path):
    with silent_server() as (url, asked):
        environ = {"KVGATE_CACHE": str(tmp_path), "HF_ENDPOINT": url, "HF_HOME": str(tmp_path)}
        with kvgate(*command.format(url=url).split(), environ=environ) as terminal:
            asked()
            terminal.press_ctrl_c()
            assert terminal.ended(5) == INTERRUPTED
            assert terminal.lines[-1] == "kvgate: interrupted"
            assert not TRACES.search(terminal.text)


def test_ctrl_c_while_an_engine_is_being_installed_ends_what_installs_it(tmp_path):
    with kvgate("demo", "--port", str(free_port()), environ={"KVGATE_CACHE": str(tmp_path)}) as terminal:
        terminal.until("making its virtual environment")
        assert eventually(lambda: descendants(terminal.process.pid))
        working = descendants(terminal.process.pid)
        terminal.press_ctrl_c()
        assert terminal.ended(5) == INTERRUPTED
        assert terminal.lines[-1] == "kvgate: interrupted"
        assert not TRACES.search(terminal.text)
    assert eventually(lambda: not any(map(is_alive, working)))


def test_ctrl_c_of_an_idle_gateway_ends_it(tmp_path):
    with fake_processes(1) as [(url, _)]:
        port = free_port()
        with kvgate("serve", "--endpoint", url, "--port", str(port)) as terminal:
            terminal.until("is up")
            terminal.press_ctrl_c()
            assert terminal.ended(10) == INTERRUPTED
            assert terminal.until(r"\d\d:\d\d:\d\d  stopping\n")
            assert not TRACES.search(terminal.text.partition("stopping")[2])


def test_ctrl_c_beside_a_stream_says_what_is_waited_for_and_a_second_ends_it_now(tmp_path):
    with fake_processes(1, "--step-seconds=0.05", "--max-model-len=8000") as [(url, _)]:
        port = free_port()
        with kvgate("serve", "--endpoint", url, "--port", str(port)) as terminal:
            terminal.until("is up")
            with streaming(port):
                terminal.press_ctrl_c()
                said = terminal.until(r"([^\r\n]*stopping.*)\n")[1]
                assert "waits for 1 request, at most 120 s; Ctrl-C again ends it now" in said
                assert len(said) <= 80
                processes = descendants(terminal.process.pid)
                terminal.press_ctrl_c()
                assert terminal.ended(2) == INTERRUPTED
            assert terminal.lines[-1] == "kvgate: interrupted"
            assert not TRACES.search(terminal.text.partition("stopping")[2])
        assert eventually(lambda: not any(map(is_alive, processes)))


def test_ctrl_c_while_weights_load_ends_the_engine_at_once(launched, tmp_path):
    arguments, _ = launched("--fake-loads")
    with kvgate(*arguments) as terminal:
        assert eventually((tmp_path / "pids").exists)
        terminal.until("engine fake: starting")
        terminal.wait_for(1.0)
        terminal.press_ctrl_c()
        assert terminal.ended(5) == INTERRUPTED
        assert terminal.until(r"\d\d:\d\d:\d\d  stopping: .*Ctrl-C again ends it now\n")
        assert not TRACES.search(terminal.text)
    assert not any(map(is_alive, engines(tmp_path)))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_of_a_kvgate_with_an_engine_leaves_nothing(launched, tmp_path, streams, presses):
    arguments, port = launched("--step-seconds=0.05", "--max-model-len=8000", "--num-blocks=500")
    with kvgate(*arguments, environ={"KVGATE_SERVER__SHUTDOWN_TIMEOUT": "3"}) as terminal:
        terminal.until("is up: ")
        processes = descendants(terminal.process.pid)
        with streaming(port) if streams else contextlib.nullcontext():
            terminal.press_ctrl_c()
            terminal.until("stopping: requests have 3 s, engines 30 s; Ctrl-C again ends it now")
            if streams:
                terminal.until("stopping: waits for 1 request, at most 3 s")
            if presses > 1:
                terminal.press_ctrl_c()
            assert terminal.ended(2 if presses > 1 else 15) == INTERRUPTED
        assert not TRACES.search(terminal.text.partition("stopping")[2])
        if presses > 1 and streams:
            assert terminal.lines[-1] == "kvgate: interrupted"
    assert eventually(lambda: not any(map(is_alive, [*processes, *engines(tmp_path)])))


def test_what_an_engine_prints_is_in_a_file_whose_path_is_shown(launched, tmp_path):
    arguments, _ = launched()
    environ = {"KVGATE_CACHE": str(tmp_path / "cache")}
    with kvgate(*arguments, environ=environ) as terminal:
        file = terminal.until(r"engine fake: its log is (\S+\.log)\n")[1]
        terminal.until("engine fake: ready after")
        assert " | " not in terminal.text
    with open(file) as log:  # noqa: PTH123
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z http://127\.0\.0\.1:\d+\n", log.read())
    with kvgate(*arguments, "--verbose", environ=environ) as terminal:
        terminal.until(r"engine fake \| http://127")
        assert "its log is" not in terminal.text


@pytest.mark.parametrize("columns", [80, 120])
def test_a_request_is_one_line_under_its_columns(launched, columns):
    arguments, port = launched()
    with kvgate(*arguments, columns=columns) as terminal:
        terminal.until("is up: ")
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body(tokens=5), timeout=30)
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=body(model="no"), timeout=30)
        terminal.until("model_not_found")
        header, good, bad = (line for line in terminal.lines if re.search("status|  200  |  404  ", line))
        assert max(map(len, (header, good, bad))) <= columns
        for name, value in (("status", "200"), ("request", "chat"), ("model", "fake")):
            assert header.index(name) == good.index(value)
        assert re.search(r"  \d+\+5  .* ms", good)
        assert bad[header.index("status") :].startswith("404")


def test_the_demos_answer_stands_alone(tmp_path):
    """With a fake in the place of vLLM and of the model; the words come one every 20 ms."""
    (tmp_path / "smollm2-135m-instruct").mkdir()
    (tmp_path / "smollm2-135m-instruct" / MARKER).touch()
    interpreter = made(tmp_path)
    interpreter.write_text(interpreter.read_text().replace('"$@"', '"$@" --step-seconds=0.02'))
    environ = {"KVGATE_CACHE": str(tmp_path), "KVGATE_ENGINE_PYTHON": str(interpreter)}
    with kvgate("demo", "--port", str(free_port()), environ=environ, columns=80) as terminal:
        terminal.until("Ctrl-C stops it.")
        terminal.press_ctrl_c()
        assert terminal.ended(15) == INTERRUPTED
    _, _, after = terminal.text.partition("streamed through kvgate")
    question, words = after.split("\n")[1:3]
    assert question.startswith("> ")
    assert words.split() == [str(number) for number in range(64)]
    assert terminal.until(r"engine smollm2: its log is \S+\n")
    assert not TRACES.search(terminal.text)


def test_a_taken_port_is_said_before_anything_is_set_up(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        started = unhindered()
        with kvgate("demo", "--port", str(port), environ={"KVGATE_CACHE": str(tmp_path)}) as terminal:
            assert terminal.ended() == 2
        assert unhindered() - started < 15
        assert f"cannot listen on 127.0.0.1:{port}" in terminal.lines[0]
        assert "--port" in terminal.lines[-1]
