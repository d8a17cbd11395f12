"""Every long measurement, one after the other: `make proof`.

    python -m loadtests.proof [--out FOLDER] [--rounds N]

Sets up a real vLLM with a small random model behind kvgate, and writes a file for each measurement, with the
hardware, versions and commit it was taken with.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
import yaml

from loadtests.processes import child, free_port

RESULTS = Path("docs/results")
START_SECONDS = 600
MODEL = "random"
ENGINE_ARGS = (
    *("--max-model-len", "2048", "--enforce-eager", "--dtype", "float32"),
    *("--block-size", "32", "--num-gpu-blocks-override", "256"),
)
"""8,192 tokens of KV cache: as small as an overload needs that takes ten seconds."""


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result files")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    rounds = ("--rounds", str(arguments.rounds))

    folder = _said("-m", "engine.demo_model", MODEL)
    with tempfile.TemporaryDirectory() as scratch:
        port = free_port()
        file = Path(scratch, "kvgate.yaml")
        log = Path(scratch, "kvgate.log")
        model = {"name": MODEL, "engine": {"model": folder, "args": list(ENGINE_ARGS)}}
        file.write_text(yaml.safe_dump({"server": {"port": port, "host": "127.0.0.1"}, "models": [model]}))
        serve = [sys.executable, "-m", "gateway.cli", "serve", "--config", str(file)]
        with child(serve, None, log) as process:
            kvgate = f"http://127.0.0.1:{port}"
            print("starting a real vLLM behind kvgate", flush=True)
            engine = asyncio.run(_engine(kvgate, process, log))
            targets = ("--direct", engine, "--kvgate", kvgate)
            _run("-m", "loadtests.overload", *targets, *rounds, "--out", str(out / "overload.json"))
            _run(
                "-m", "loadtests.overload", *targets, "--load", "0.1", "--rounds", "1", "--out", str(out / "tenth.json")
            )
    _run("-m", "loadtests.relay_cost", *rounds, "--out", str(out / "relay_cost.json"))
    for name, given in (("core_cost", ()), ("counting_cost", (folder,))):
        text = _said("-m", f"tests.proof.{name}", *given)
        (out / f"{name}.txt").write_text(f"{text}\n")
        print(text)


async def _engine(kvgate: str, process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the engine behind kvgate is healthy; return its own URL."""
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
        while process.poll() is None:
            try:
                async with session.get(f"{kvgate}/kvgate/state") as response:
                    healthy = [e["url"] for e in (await response.json())["endpoints"] if e["healthy"]]
                if healthy:
                    return str(healthy[0])
            except aiohttp.ClientError:
                pass  # the gateway's process is still starting
            await asyncio.sleep(0.5)
    sys.exit(f"kvgate ended:\n{log.read_text()[-2000:]}")  # noqa: ASYNC240  # nothing else is left to do


def _run(*arguments: str) -> None:
    print(f"\n$ python {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, *arguments], check=True)


def _said(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    main()
