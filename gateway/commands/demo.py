"""`kvgate demo`: a real chat model on a real engine behind kvgate, from nothing to a streamed answer."""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from engine.cache import Progress, SetupError
from engine.demo_model import SMOLLM2_ARGS, smollm2, smollm2_gguf
from engine.events import SupervisorEvent
from engine.interpreter import Build, build_here, engine_python
from engine.llama.program import llama_server
from gateway.config.errors import ConfigurationError
from gateway.config.settings import LogSettings, Settings
from gateway.ops.logs import configure
from gateway.runtime.failure import fail
from gateway.runtime.interrupts import Stop
from gateway.serve.discovery import Discovery
from gateway.serve.reload import Deployment
from gateway.serve.running import way_out
from gateway.serve.supervision_log import SupervisionLog, engine_logs
from gateway.server.server import PortTakenError, bind

MODEL = "smollm2"
QUESTION = "What is the capital of France? Answer in one sentence."

_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
_POLL = 0.25


class DemoError(Exception):
    """The demo got no answer. The message says why."""


class DemoEngine(StrEnum):
    """The engine that the demo shows."""

    VLLM = "vllm"
    LLAMA = "llama"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An engine that can be launched: its settings, and the interpreter that has vLLM, if it needs one."""

    engine: Mapping[str, Any] = field(repr=False)
    python: Path | None = None


def _vllm(say: Progress) -> Prepared:
    python = engine_python(say)
    return Prepared(vllm_settings(smollm2(python, say), build_here()), python)


def vllm_settings(folder: Path, build: Build) -> dict[str, Any]:
    """The settings of a vLLM for the model in this folder."""
    space = {"VLLM_CPU_KVCACHE_SPACE": "1"} if build is Build.CPU else {}
    return {"model": str(folder), "args": [*SMOLLM2_ARGS[build], *_TOOLS], "env": space}


def _llama(say: Progress) -> Prepared:
    llama_server(None)  # without one, the model need not be fetched
    return Prepared({"model": str(smollm2_gguf(progress=say))})


PREPARE: Mapping[DemoEngine, Callable[[Progress], Prepared]] = {DemoEngine.VLLM: _vllm, DemoEngine.LLAMA: _llama}
"""What sets up what an engine needs, once."""


def settings(engine: Mapping[str, Any], host: str, port: int) -> Settings:
    """The demo's settings: one engine, defaults for the rest."""
    return Settings.model_validate(
        {
            "server": {"host": host, "port": port},
            "log": {"level": "error", "access": False},  # only the answer appears
            "models": [{"name": MODEL, "engine": engine}],
        }
    )


def demo_command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for clients.")] = 8080,
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer.")] = False,  # noqa: FBT002
    engine: Annotated[DemoEngine, typer.Option(help="The engine that serves it.")] = DemoEngine.VLLM,
) -> None:
    """Run a small real chat model on a real engine behind kvgate; sets up what is missing, once."""
    try:
        sys.exit(demo(Console(stderr=True, highlight=False), host, port, once=once, engine=engine))
    except PortTakenError as error:
        fail(way_out(error))
    except (SetupError, DemoError, ConfigurationError) as error:
        fail(str(error))


def demo(console: Console, host: str, port: int, *, once: bool, engine: DemoEngine = DemoEngine.VLLM) -> int:
    """Set up what is missing, launch, ask one question, and keep serving until Ctrl-C.

    Args:
        console: gets everything a person should see.
        host: to listen on.
        port: for clients.
        once: end after the answer.
        engine: that serves the model.

    Returns:
        The exit code: 0 only if a real answer streamed.

    Raises:
        SetupError: the engine or the model could not be had.
        DemoError: there was no answer.
        PortTakenError: the port is taken.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    bind(host, port).close()  # report a taken port now, not after minutes of setup
    # Outside of asyncio, so that Ctrl-C ends it at once.
    prepared = PREPARE[engine](say)
    configure(LogSettings(format="console"))
    return asyncio.run(_serve(console, settings(prepared.engine, host, port), prepared.python, once=once))


async def _serve(console: Console, chosen: Settings, python: Path | None, *, once: bool) -> int:
    log = _Quiet(SupervisionLog(engine_logs(chosen.server.where), for_people=True))
    stop = Stop(asyncio.Event(), lambda: log.say("stopping; Ctrl-C again ends it now"))
    stop.listen(asyncio.get_running_loop())
    running = Deployment(Discovery(chosen), lambda _file, _changes: chosen, log, log.say, python)
    supervising = asyncio.create_task(running.run(stop.event))
    base_url = f"http://127.0.0.1:{chosen.server.port}/v1"
    try:
        answering = asyncio.create_task(_answer(console, base_url, log))
        stopping = asyncio.create_task(stop.event.wait())
        await asyncio.wait({supervising, answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if answering.done():
            answering.result()
            _show_how_to(console, base_url)
            if once:
                stop.event.set()
        else:
            answering.cancel()
        return await supervising or stop.code
    finally:
        stop.event.set()
        if not supervising.done():
            await supervising
        log.last_words()


class _Quiet:
    """Holds back reports on programs while an answer is on the screen."""

    def __init__(self, log: SupervisionLog) -> None:
        self._log = log
        self._kept: list[Callable[[], None]] | None = None

    def __call__(self, event: SupervisorEvent) -> None:
        self._now_or_later(lambda: self._log(event))

    def say(self, text: str) -> None:
        self._now_or_later(lambda: self._log.say(text))

    def last_words(self) -> None:
        self._log.last_words()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        self._kept = []
        try:
            yield
        finally:
            kept, self._kept = self._kept, None
            for tell in kept:
                tell()

    def _now_or_later(self, tell: Callable[[], None]) -> None:
        if self._kept is None:
            tell()
        else:
            self._kept.append(tell)


async def _answer(console: Console, base_url: str, log: _Quiet) -> None:
    """Wait until kvgate is ready and stream one chat answer to the terminal."""
    try:
        from openai import AsyncOpenAI, OpenAIError  # noqa: PLC0415  # the demo's only: serving needs no SDK
    except ImportError:
        raise DemoError("the demo asks through the OpenAI SDK: pip install 'kvgate[demo]'") from None
    await _ready(base_url.removesuffix("/v1"))
    with log.kept():
        console.rule("one chat answer, streamed through kvgate")
        console.print(f"> {QUESTION}", markup=False)
        text = ""
        try:
            async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": QUESTION}],
                    temperature=0,
                    max_tokens=64,
                    stream=True,
                )
                async for chunk in stream:
                    piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
                    text += piece
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        except OpenAIError as error:
            raise DemoError(f"the model did not answer: {error}") from error
        finally:
            sys.stdout.write("\n")
            sys.stdout.flush()
    if not text.strip():
        raise DemoError("the model's answer was empty")


async def _ready(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            try:
                if (await client.get(f"{url}/readyz", params={"strict": "1"})).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # the gateway's process is still starting
            await asyncio.sleep(_POLL)


def _show_how_to(console: Console, base_url: str) -> None:
    console.rule("serving")
    console.print(f"base_url   {base_url}", markup=False)
    console.print(
        f"""curl       curl -N {base_url}/chat/completions -H 'content-type: application/json' -d \\
           '{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'""",
        markup=False,
        soft_wrap=True,
    )
    console.print("Ctrl-C stops it.", markup=False)
