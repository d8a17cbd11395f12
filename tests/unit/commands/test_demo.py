"""The demo, with a stand-in for what launches vLLM and kvgate."""

import asyncio
import io
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from engine.cache import SetupError
from engine.interpreter import Build
from gateway.commands import demo as module
from gateway.commands.demo import MODEL, QUESTION, DemoEngine, DemoError, demo, settings, vllm_settings
from gateway.server.server import PortTakenError
from tests.ports import free_port

CHUNK = 'data: {{"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{}]}}\n\n'
DONE = "data: [DONE]\n\n"


def word(text):
    return CHUNK.format(f'{{"index": 0, "delta": {{"content": "{text}"}}}}')


class Log:
    """Shows at once what it is told."""

    def say(self, text):
        print(f"log: {text}")

    def last_words(self):
        print("last words")


class Launch:
    """In the place of a deployment: a kvgate that answers with these events, or that never gets ready.

    Args:
        events: of the answer.
        ready: whether it gets ready, at the second question.
        status: of the answer.
        interrupted: whether somebody presses Ctrl-C before the answer.
        code: what it returns; None serves until it is stopped.
    """

    def __init__(self, *events, ready=True, status="200 OK", interrupted=False, code=None):
        self.events, self.ready, self.status, self.interrupted, self.code = events, ready, status, interrupted, code
        self.probed = []
        self.asked = 0
        self.stopped = False

    def __call__(self, chosen, _load, log, say, _python):
        self.port, self.say = chosen.settings.server.port, say
        (self.model,) = chosen.settings.models
        return self

    async def run(self, stop):
        if self.code is not None:
            return self.code
        async with await asyncio.start_server(self._answer, "127.0.0.1", self.port):
            if self.interrupted:
                os.kill(os.getpid(), signal.SIGINT)
            await stop.wait()
        self.stopped = True
        return 0

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET "):
            self.probed.append(head.split()[1])
            status = "200 OK" if self.ready and len(self.probed) > 1 else "503 Service Unavailable"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        else:
            assert head.startswith("POST /v1/chat/completions ")
            self.asked += 1
            writer.write(
                f"HTTP/1.1 {self.status}\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".encode()
            )
            for event in self.events:
                writer.write(event.encode())
                await writer.drain()
                self.say("an engine compiles")
        writer.close()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the demo with this launch: its exit code."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(module, "engine_python", lambda _say: Path(sys.executable))
    monkeypatch.setattr(module, "smollm2", lambda _python, _say: tmp_path)
    monkeypatch.setattr(module, "configure", lambda _settings: None)
    monkeypatch.setattr(module, "SupervisionLog", lambda *_, **__: Log())

    def start(launch, *, once=True, **engine):
        monkeypatch.setattr(module, "Deployment", launch)
        return demo(Console(width=80), "127.0.0.1", free_port(), once=once, **engine)

    yield start
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_streamed_answer_stands_alone_and_says_how_to_ask_on(run, capsys):
    launch = Launch(word("Par"), word("is."), DONE)
    assert run(launch) == 0
    assert (launch.asked, launch.stopped) == (1, True)
    assert launch.probed == ["/readyz?strict=1"] * 2, "an engine has to be ready, not kvgate alone"
    shown = capsys.readouterr().out
    answer, how_to = shown.split("serving", 1)
    assert f"> {QUESTION}\nParis.\n" in answer
    assert answer.index("log: an engine compiles") > answer.index("Paris."), "it is said after the answer"
    assert f"base_url   http://127.0.0.1:{launch.port}/v1\n" in how_to
    assert f'"model": "{MODEL}"' in how_to
    assert "Ctrl-C stops it." in how_to


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        (Launch(DONE), "the model's answer was empty"),
        (Launch(word("  "), DONE), "the model's answer was empty"),
        (Launch('{"error": {"message": "no such model"}}', status="404 Not Found"), "did not answer: .*no such model"),
        (Launch(word("Par"), 'data: {"error": {"message": "it died"}}\n\n'), "did not answer: it died"),
    ],
)
def test_without_a_real_answer_it_fails_and_ends_what_it_launched(run, capsys, launch, why):
    with pytest.raises(DemoError, match=why):
        run(launch)
    assert launch.stopped
    assert capsys.readouterr().out.endswith("last words\n")


def test_an_engine_that_cannot_run_ends_it_with_its_code(run, capsys):
    assert run(Launch(code=1)) == 1
    assert QUESTION not in capsys.readouterr().out


def test_ctrl_c_while_the_model_loads_ends_it_as_such(run, capsys):
    launch = Launch(ready=False, interrupted=True)
    assert run(launch, once=False) == 130
    assert (launch.stopped, launch.asked) == (True, 0)
    assert "log: stopping; Ctrl-C again ends it now" in capsys.readouterr().out


def test_without_the_sdk_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    launch = Launch(ready=False)
    with pytest.raises(DemoError, match=r"pip install 'kvgate\[demo\]'"):
        run(launch)
    assert launch.stopped


def test_a_taken_port_is_said_before_anything_is_set_up(monkeypatch):
    monkeypatch.setattr(module, "engine_python", lambda _say: pytest.fail("it began to set up"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortTakenError):
            demo(Console(file=io.StringIO()), "127.0.0.1", other.getsockname()[1], once=True)


def test_on_a_processor_the_cache_takes_little_memory_and_on_a_gpu_vllm_decides():
    def environment(build):
        (model,) = settings(vllm_settings(Path("/models/smollm2"), build), "127.0.0.1", 8080).models
        assert (model.name, model.engine.model) == (MODEL, "/models/smollm2")
        return {name: value.get_secret_value() for name, value in model.engine.env.items()}

    assert environment(Build.CPU) == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert environment(Build.CUDA) == {}


def test_a_llama_server_gets_the_model_as_one_file_and_needs_no_vllm(run, monkeypatch):
    monkeypatch.setattr(module, "engine_python", lambda _say: pytest.fail("it set up a vLLM"))
    monkeypatch.setattr(module, "llama_server", lambda _given: None)
    monkeypatch.setattr(module, "smollm2_gguf", lambda progress: Path("/models/smollm2.gguf"))
    launch = Launch(word("Paris."), DONE)
    assert run(launch, engine=DemoEngine.LLAMA) == 0
    assert (launch.model.name, launch.model.engine.model) == (MODEL, "/models/smollm2.gguf")


def test_without_a_llama_server_the_model_is_not_fetched(run, monkeypatch):
    def none(_given):
        raise SetupError("llama-server", "there is none", "install it")

    monkeypatch.setattr(module, "llama_server", none)
    monkeypatch.setattr(module, "smollm2_gguf", lambda progress: pytest.fail("it was fetched"))
    with pytest.raises(SetupError, match="there is none"):
        run(Launch(), engine=DemoEngine.LLAMA)
