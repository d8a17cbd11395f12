import asyncio
import errno
import json
from pathlib import Path

import httpx
import pytest

from tests.clock import Clock

EXPOSITIONS = Path(__file__).parent / "expositions"


def answered(status, body, headers=None):
    """An answer as it comes over a connection: not read yet."""

    async def parts():
        yield body

    return httpx.Response(status, content=parts(), headers=headers)


class Vllm:
    """What a vLLM server answers to probes; each answer can be replaced, by bytes, a status, both or an exception."""

    def __init__(self):
        self.asked = []
        self.headers = None
        self.answers = {}
        self.answer_headers = {}
        self.listening = True
        self.answers_yet = set()
        """Paths that are answered however silent it is."""
        self.silent = asyncio.Event()
        self.silent.set()
        self.max_model_len = 1024
        self.loras = ()
        self.bodies = []
        """What was posted to it. Where it has the routes of adapters, it loads and unloads them."""
        self.metrics = (EXPOSITIONS / "vllm-0.32-busy.prom").read_bytes()
        self.answers["/version"] = b'{"version":"0.32.0"}'
        self.answers["/is_sleeping"] = 404

    def models(self):
        base = [{"id": name, "root": "org/smol", "parent": None} for name in ("smol", "demo")]
        loras = [{"id": name, "root": f"/{name}", "parent": "smol"} for name in self.loras]
        cards = [{**card, "max_model_len": self.max_model_len} for card in base + loras]
        return json.dumps({"object": "list", "data": cards}).encode()

    async def __call__(self, request):
        path = request.url.path
        self.asked.append(path)
        self.headers = request.headers
        if self.listening:
            request.extensions["connected"]()
        if path not in self.answers_yet:
            await self.silent.wait()
        if not self.listening:
            failed = httpx.ConnectError("All connection attempts failed", request=request)
            raise failed from OSError(f"[Errno {errno.ENETUNREACH}] no route, [Errno {errno.ECONNREFUSED}] no")
        standard = {"/health": b"", "/metrics": self.metrics, "/v1/models": self.models()}
        answer = self.answers.get(path, standard.get(path, 404))
        if request.method == "POST":
            self.bodies.append(await request.aread())
            if path.endswith("load_lora_adapter") and answer == b"":
                name = json.loads(self.bodies[-1])["lora_name"]
                kept = tuple(one for one in self.loras if one != name)
                self.loras = kept if "unload" in path else (*kept, name)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, tuple):
            return answered(*answer)
        return answered(answer, b"") if isinstance(answer, int) else answered(200, answer, self.answer_headers)


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def vllm():
    return Vllm()


@pytest.fixture
async def client(vllm):
    async with httpx.AsyncClient(transport=httpx.MockTransport(vllm)) as made:
        yield made
