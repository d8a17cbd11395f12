"""`kvgate demo`: a real chat model on a real vLLM behind kvgate, from nothing to a streamed answer."""

import asyncio
import sys
from pathlib import Path

import httpx
from rich.console import Console

from engine.demo_model import SMOLLM2_ARGS, smollm2
from engine.environment import Build, build_here, engine_python
from engine.events import LinePrinted, SupervisorEvent
from gateway.config import Settings
from gateway.reload import Deployment

MODEL = "smollm2"
QUESTION = "What is the capital of France? Answer in one sentence."

_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
_POLL = 0.25


class DemoError(Exception):
    """The demo did not come to an answer. The message says why."""


def settings(folder: Path, build: Build, host: str, port: int) -> Settings:
    """The demo's settings: one engine for the model in that folder, everything else as by default."""
    return Settings.model_validate(
        {
            "server": {"host": host, "port": port},
            "log": {"level": "warning"},
            "models": [
                {
                    "name": MODEL,
                    "engine": {
                        "model": str(folder),
                        "args": [*SMOLLM2_ARGS[build], *_TOOLS],
                        "env": {"VLLM_CPU_KVCACHE_SPACE": "1"} if build is Build.CPU else {},
                    },
                }
            ],
        }
    )


async def demo(console: Console, host: str, port: int, stop: asyncio.Event, *, once: bool) -> int:
    """Set up what is missing, launch, ask one question, and keep serving until `stop` is set.

    Args:
        console: for everything a person should see.
        host: to listen on.
        port: for clients.
        stop: ends it.
        once: end after the answer.

    Returns:
        The exit code: 0 only if a real answer streamed.

    Raises:
        SetupError: the engine's environment or the model could not be made.
        DemoError: there was no answer.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    python = await asyncio.to_thread(engine_python, say)
    folder = await asyncio.to_thread(smollm2, python, say)

    def tell(event: SupervisorEvent) -> None:
        if not isinstance(event, LinePrinted):  # the engine's log, of which the phases are enough here
            say(str(event))

    chosen = settings(folder, build_here(), host, port)
    running = Deployment(chosen, lambda _: chosen, tell, say, python)
    supervising = asyncio.create_task(running.run(stop))
    base_url = f"http://127.0.0.1:{port}/v1"
    try:
        answering = asyncio.create_task(_answer(console, base_url))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({supervising, answering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not answering.done():
            answering.cancel()
            return await supervising
        answering.result()
        _show_how_to(console, base_url)
        if once:
            stop.set()
        return await supervising
    finally:
        stop.set()
        if not supervising.done():
            await supervising


async def _answer(console: Console, base_url: str) -> None:
    """Wait until kvgate is ready and stream one chat answer to the terminal."""
    try:
        from openai import AsyncOpenAI, OpenAIError  # noqa: PLC0415  # the demo's only: serving needs no SDK
    except ImportError:
        raise DemoError("the demo asks through the OpenAI SDK: pip install 'kvgate[demo]'") from None
    await _ready(base_url.removesuffix("/v1"))
    console.rule("one chat answer, streamed through kvgate")
    console.print(f"> {QUESTION}", markup=False)
    text = ""
    try:
        async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=64, stream=True
            )
            async for chunk in stream:
                piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
                text += piece
                sys.stdout.write(piece)
                sys.stdout.flush()
    except OpenAIError as error:
        raise DemoError(f"the model did not answer: {error}") from error
    sys.stdout.write("\n")
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
