"""One kvgate for the whole suite, in front of a fake vLLM with a real tokenizer and of an engine that is hostile."""

import json
from collections.abc import Iterator

import pytest

from tests.fakes.tokenizer import make_tokenizer
from tests.integration.relaying import fake_processes
from tests.security.hostile import Hostile
from tests.security.target import Target, launch


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """It serves `fake`, counted here, and `hostile`, counted by that engine."""
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    log = tmp_path_factory.mktemp("kvgate") / "log"
    hostile = Hostile()
    with fake_processes(1, "--tokenizer", str(folder)) as [(url, _)]:
        settings = {
            "server": {"host": "127.0.0.1", "port": 0, "body_timeout": 5},
            "models": [
                {"tokenizer": str(folder), "endpoints": [{"url": url}]},
                {"tokenizer": "/nonexistent", "endpoints": [{"url": hostile.url}]},
            ],
            "log": {"format": "json"},
        }
        process = launch(settings, log)
        attacked = Target(process, hostile)
        try:
            attacked.wait_ready({"local", "engine"})
            large = {"model": "fake", "messages": [{"role": "user", "content": "a " * 50_000}]}
            attacked.post("/v1/chat/completions", json.dumps(large).encode())  # starts the process for such bodies
            attacked.wait_settled()
            yield attacked
        finally:
            process.terminate()
            process.communicate()
            hostile.close()
            text = log.read_text()
            assert len(text) < 1 << 20, "the log must not repeat what attackers write"
            print(text[-20_000:])
