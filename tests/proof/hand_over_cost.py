"""What token ids save an engine: time to first token and CPU of its front end, by prompts sent as text and with ids.

    python -m tests.proof.hand_over_cost

A real vLLM on the CPU, with a model of one small layer. Prompts come again, so that the engine finds them in its prefix
cache: then what it does before the first token is to read, render and tokenize, as on a GPU. Both ways in turn.
"""

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx

from engine.demo_model import smollm2
from engine.interpreter import engine_python
from engine.process import free_port
from gateway.tokens.local_count import count_body
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import Api
from gateway.wire.token_ids import IdsField, with_ids
from tests.integration.parity.model import small_model

MAX_MODEL_LEN = 131_072
SIZES = (250, 500, 1_000, 4_000, 16_000, 64_000, 100_000)
ROUNDS = 9
HEADERS = {"content-type": "application/json"}


@contextmanager
def engine(python: Path, model: Path) -> Iterator[tuple[str, int]]:
    """The URL of a vLLM and the process id of its front end."""
    port = free_port()
    argv = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m"),
        *("--host", "127.0.0.1", "--port", str(port), "--load-format", "dummy", "--enforce-eager"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--block-size", "32", "--num-gpu-blocks-override", "5000"),
        *("--dtype", "float32", "--disable-uvicorn-access-log"),
    ]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = model / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=environ, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        while not _healthy(url):
            if process.poll() is not None:
                raise RuntimeError(f"vLLM ended:\n{log.read_text()[-2000:]}")
            time.sleep(1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def prompt(tokens: int) -> bytes:
    """A conversation of about so many tokens."""
    words = ("house", "river", "stone", "light", "answer", "seven", "under", "before", "never", "question")
    chosen = random.Random(tokens)  # noqa: S311
    text = " ".join(chosen.choice(words) for _ in range(tokens - 50))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return json.dumps({"model": "m", "max_tokens": 1, "stream": True, "messages": messages}).encode()


def cost(client: httpx.Client, url: str, front_end: int, body: bytes) -> tuple[float, float]:
    """Milliseconds to the first token, and of the front end's CPU until the end of the answer."""
    cpu, start = _cpu(front_end), time.perf_counter()
    with client.stream("POST", f"{url}/v1/chat/completions", content=body, headers=HEADERS) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        first = time.perf_counter() - start
        for _ in lines:
            pass
    return first * 1e3, (_cpu(front_end) - cpu) * 1e3


def counting(source: TokenizerSource, body: bytes, ids_from: int | None) -> float:
    """Milliseconds of CPU that counting takes, with or without ids."""
    start = time.process_time()
    count_body(source, Api.CHAT, body, MAX_MODEL_LEN, ids_from=ids_from)
    return (time.process_time() - start) * 1e3


def _cpu(pid: int) -> float:
    """Seconds of CPU of all its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    """Print the table."""
    python = engine_python()
    with TemporaryDirectory() as folder:
        model = small_model(smollm2(python), Path(folder))
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": MAX_MODEL_LEN}))
        source = TokenizerSource(str(model))
        with engine(python, model) as (url, front_end), httpx.Client(timeout=600) as client:
            print(f"{'tokens':>8} {'TTFT: text':>11} {'ids':>8} {'CPU: text':>16} {'ids':>8}  ms, medians of {ROUNDS}")
            for size in SIZES:
                text = prompt(size)
                counted = count_body(source, Api.CHAT, text, MAX_MODEL_LEN, ids_from=1)
                bodies = (text, with_ids(text, IdsField.TRANSFER, counted.ids))
                cost(client, url, front_end, text)
                rounds = [[cost(client, url, front_end, body) for body in bodies] for _ in range(ROUNDS)]
                (first, cpu), (first_ids, cpu_ids) = (
                    [median(each[side][figure] for each in rounds) for figure in (0, 1)] for side in (0, 1)
                )
                ours = median(counting(source, text, 1) - counting(source, text, None) for _ in range(ROUNDS))
                figures = f"{first:>11.1f} {first_ids:>8.1f} {cpu:>11.1f} {cpu_ids:>8.1f} {ours:>7.2f}"
                print(f"{counted.prompts[0]:>8} {figures}")


if __name__ == "__main__":
    main()
