"""The Dockerfile, carried out step by step without Docker, and the image it makes, run as the compose file runs it."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import httpx
import pytest
import pytest_asyncio
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from engine.cache import cache_folder
from tests.deploy.chroot import Container, debian, in_memory
from tests.deploy.dockerfile import Context, Stage, parse
from tests.deploy.stack import ROOT, until
from tests.fakes.vllm import FakeSettings, FakeVllm
from tests.fakes.vllm.model_tokenizer import model_tokenizer
from tests.ports import free_port

pytestmark = pytest.mark.network

HUB_ID = "somebody/model"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    return parse((ROOT / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def image(stages: list[Stage], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """What the last stage makes."""
    with in_memory(tmp_path_factory.mktemp("image")) as folder:
        built: dict[str, Container] = {}
        for number, stage in enumerate(stages):
            name = stage.name or str(number)
            built[name] = Container(folder / name, debian(stage.image, cache_folder() / "images"))
            built[name].build(stage, Context(ROOT), built)
        yield list(built.values())[-1]


@dataclass(frozen=True)
class Running:
    image: Container
    process: asyncio.subprocess.Process
    """unshare's, outside."""
    port: int
    fake: FakeVllm
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the container's first process, as it is called outside."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def status(self) -> str:
        """What the kernel says of that process."""
        return Path(f"/proc/{self.pid}/status").read_text()


@pytest_asyncio.fixture
async def running(image: Container, stages: list[Stage], tmp_path: Path) -> AsyncIterator[Running]:
    """The image, with a volume in which an engine has left its model, in front of that engine."""
    volume = image.inside(PurePosixPath(image.environ["HF_HOME"]))
    folder = model_in_hub_cache(volume)
    entrypoint = stages[-1].last("ENTRYPOINT").arguments
    port = free_port()
    settings = {"KVGATE_SERVER__PORT": str(port), "KVGATE_SERVER__HOST": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
    async with FakeVllm(FakeSettings(root=HUB_ID), tokenize=model_tokenizer(folder)) as fake:
        log = tmp_path / "log"
        with log.open("wb") as output:
            command = image.command([*entrypoint, "--endpoint", fake.url], settings)
            process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        try:
            yield Running(image, process, port, fake, log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def model_in_hub_cache(home: Path) -> Path:
    """A tokenizer, lying as huggingface_hub leaves it, all of it root's; returns its folder."""
    repository = home / "hub" / f"models--{HUB_ID.replace('/', '--')}"
    folder = repository / "snapshots" / "0123456789"
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(folder.name)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return folder


async def healthy(image: Container, stages: list[Stage], port: int) -> bool:
    """The verdict of the image's health check."""
    check = stages[-1].last("HEALTHCHECK")
    argv = json.loads(check.rest.removeprefix("CMD"))
    command = image.command(argv, {"KVGATE_SERVER__PORT": str(port)})
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    seconds = float(check.flags["timeout"].removesuffix("s"))
    return await asyncio.wait_for(process.wait(), 10 * seconds) == 0


async def test_the_image_starts_without_root_turns_healthy_serves_and_ends_in_peace(
    running: Running, stages: list[Stage]
) -> None:
    image = running.image
    assert not await healthy(image, stages, free_port())
    await until(lambda: healthy(image, stages, running.port), "the health check is green")

    user, group = image.user.split(":")
    status = running.status()
    assert re.search(rf"^Uid:\t{user}\t{user}\t{user}\t{user}$", status, re.MULTILINE)
    assert re.search(rf"^Gid:\t{group}\t{group}\t{group}\t{group}$", status, re.MULTILINE)
    assert int(user) > 0

    async with httpx.AsyncClient(base_url=running.url, timeout=30, trust_env=False) as client:

        async def counts_itself() -> bool:
            counting = (await client.get("/kvgate/state")).json()["counting"]
            return bool(counting) and counting[0]["mode"] == "local"

        await until(counts_itself, f"the tokenizer on the volume is used:\n{running.log.read_text()}")
        asked = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        answer = (await client.post("/v1/chat/completions", json=asked)).json()
        assert answer["usage"]["prompt_tokens"] == len("<user>hello<assistant>")
        assert answer["choices"][0]["finish_reason"] == "length"

    stop = signal.Signals[stages[-1].last("STOPSIGNAL").rest]
    os.kill(running.pid, stop)
    assert await asyncio.wait_for(running.process.wait(), 30) == 0


def test_the_image_holds_what_a_gateway_needs_and_no_more(image: Container) -> None:
    packages = image.inside(PurePosixPath("/opt/kvgate/lib/python3.11/site-packages"))
    installed = {path.name.split("-")[0].lower() for path in packages.glob("*.dist-info")}
    assert "kvgate" in installed
    assert not installed & {"torch", "vllm", "pip", "setuptools", "pytest", "ruff", "mypy"}
    (record,) = packages.glob("kvgate-*.dist-info/RECORD")
    tops = {line.split("/")[0].split(",")[0] for line in record.read_text().splitlines()}
    (compiled,) = (top for top in tops if top.endswith(".so"))
    assert tops - {compiled, "..", record.parent.name} == {"gateway", "engine"}, "a wheel has the product alone"
    size = sum(path.lstat().st_size for path in image.inside(PurePosixPath("/opt/kvgate")).rglob("*"))
    assert size < 400e6
    assert list(image.inside(PurePosixPath("/opt/kvgate")).rglob("admission/controller.*.so")), (
        "the core is interpreted"
    )


def test_only_what_the_image_needs_is_sent_to_a_build() -> None:
    context = Context(ROOT)
    sent = {path for path in (PurePosixPath(name) for name in tracked()) if context.sends(path)}
    tops = {path.parts[0] for path in sent}
    files = {"pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert tops == files | {"gateway", "engine", "deploy", "requirements"}
    assert {str(path) for path in sent if path.parts[0] == "deploy"} == {"deploy/healthcheck.py"}
    assert not context.sends(PurePosixPath("requirements/dev.txt"))
    assert not context.sends(PurePosixPath("gateway/__pycache__/cli.cpython-311.pyc"))
    assert not context.sends(PurePosixPath(".env"))


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()
