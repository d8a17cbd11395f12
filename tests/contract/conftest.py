"""A kvgate in front of a real chat model, for clients that are nobody's fakes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache import cache_folder, made_once, run_step, to_stderr
from tests.conftest import Vllm
from tests.integration.kvgate import PATIENT, Kvgate, serving
from tests.ports import free_port

OPENAI_NODE = "openai@7.55.0"


@pytest.fixture(scope="session")
def kvgate(chat_vllm: Vllm, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kvgate]:
    """Serves the real chat model as `smollm2`."""
    log = tmp_path_factory.mktemp("kvgate") / "log"
    arguments = ("--endpoint", chat_vllm.url, "--tokenizer", str(demo_model))
    with serving(log, free_port(), *arguments, environ=PATIENT) as running:
        running.wait_healthy(1)
        deadline = time.monotonic() + 60
        while running.state()["counting"][0]["mode"] != "local":  # until the tokenizer is loaded
            assert time.monotonic() < deadline, running.state()["counting"]
            time.sleep(0.2)
        yield running


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """A folder in which npm has installed OpenAI's SDK, kept in the cache."""

    def install(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        argv = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", OPENAI_NODE]
        run_step(argv, what="installing OpenAI's Node SDK", progress=to_stderr)

    folder = cache_folder() / OPENAI_NODE.replace("@", "-node-")
    return made_once(folder, install, what="OpenAI's Node SDK", progress=to_stderr)
