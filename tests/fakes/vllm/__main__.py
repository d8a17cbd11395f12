"""Run the fake as a process of its own: `python -m tests.fakes.vllm --port 8000`."""

import argparse
import asyncio
import dataclasses
import signal
import typing
from pathlib import Path

import uvloop

from tests.fakes.vllm.requests import Tokenize, tokenize_words
from tests.fakes.vllm.server import FakeSettings, FakeVllm


def parse() -> tuple[FakeSettings, argparse.Namespace]:
    """Every setting is an option of its name."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.vllm", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one, printed on start")
    parser.add_argument("--uds", help="path of a unix socket to listen on instead")
    parser.add_argument("--tokenizer", type=Path, help="count with the tokenizer in this folder, not by words")
    parser.add_argument("--as-vllm", action="store_true", help="pass over arguments of vLLM's that the fake lacks")
    types = typing.get_type_hints(FakeSettings)
    for field in dataclasses.fields(FakeSettings):
        kind = types[field.name]
        option = f"--{field.name.replace('_', '-')}"
        read = _names if field.name == "loras" else kind if isinstance(kind, type) else int
        parser.add_argument(option, type=read, default=field.default)
    arguments, unknown = parser.parse_known_args()
    if unknown and not arguments.as_vllm:
        parser.error(f"unknown: {' '.join(unknown)}")
    names = [field.name for field in dataclasses.fields(FakeSettings)]
    return FakeSettings(**{name: getattr(arguments, name) for name in names}), arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


async def serve(settings: FakeSettings, host: str, port: int, tokenize: Tokenize, uds: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    fake = FakeVllm(settings, tokenize=tokenize, uds=uds)
    await fake.listen(port, host)
    print(fake.url if uds is not None else f"http://{host}:{fake.port}", flush=True)
    await stopped.wait()
    await fake.close()


def main() -> None:
    """Entry point."""
    settings, arguments = parse()
    tokenize: Tokenize = tokenize_words
    if arguments.tokenizer is not None:
        from tests.fakes.vllm.model_tokenizer import model_tokenizer

        tokenize = model_tokenizer(arguments.tokenizer)
    uvloop.run(serve(settings, arguments.host, arguments.port, tokenize, arguments.uds))


main()
