"""A data plane without a network: a real gateway and core, in front of endpoints that answer what a test wants."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from gateway.admission.controller import AdmissionController
from gateway.admission.events import Capacity, EndpointId
from gateway.admission.limits.tenants import Tenants
from gateway.app.named_files import read_named_files
from gateway.config.settings import ModelSettings, Settings
from gateway.endpoints.identity import Identity
from gateway.ops.metrics import Metrics
from gateway.pools.admission import Admission
from gateway.pools.awaited import Awaited
from gateway.pools.cores import Cores
from gateway.pools.directory import Directory, Endpoint, Pool
from gateway.pools.driver import Driver
from gateway.relay.client_identity import Clients
from gateway.relay.exchange import Reporter
from gateway.relay.flights import Flights
from gateway.relay.gateway import Gateway
from gateway.relay.lobby import Lobby
from gateway.relay.payload import Room
from gateway.relay.plane import Plane
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.upstream.interface import ChunkSink, ConnectFailedError, Drained, Sink
from gateway.wire.engine_kinds import VLLM
from gateway.wire.token_ids import IdsField
from tests.fakes.paired import paired

CHAT = "/v1/chat/completions"
ASKED = b'{"model":"m","messages":[],"max_tokens":4}'
STREAMED = b'{"model":"m","messages":[],"max_tokens":4,"stream":true}'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USED = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = (TOKEN, LAST, USED, DONE)
WHOLE = b'{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'


Piece = bytes | Exception | asyncio.Event | float


class Reply:
    """An endpoint's answer, piece by piece. Among them are exceptions, events to wait for, and seconds to wait."""

    def __init__(self, *pieces: Piece, status: int = 200, **headers: str) -> None:
        named = {"content_type": "application/json", **headers}
        self.status = status
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
        self.pieces = deque(pieces)
        self.closed = False

    async def read_some(self) -> bytes:
        while self.pieces:
            match self.pieces.popleft():
                case bytes() as piece:
                    return piece
                case asyncio.Event() as event:
                    await event.wait()
                case float() as seconds:
                    await asyncio.sleep(seconds)
                case Exception() as error:
                    raise error
        return b""

    async def deliver(self, sink: Sink, drained: Drained, _chunks: ChunkSink | None = None) -> None:
        while piece := await self.read_some():
            if not sink(piece):
                await drained()

    def close(self) -> None:
        self.closed = True


def stream(*pieces: Piece) -> Reply:
    """A streamed answer."""
    return Reply(*(pieces or STREAM), content_type="text/event-stream")


class Watch:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, dict[str, bool]]] = []
        self.evacuated: list[bool] = []
        self.prompts: list[int] = []
        self.on_it: set[int] = set()
        self.passing: set[int] = set()
        self.unanswered = 0
        self.progress = 0
        self.on_trial = self.keeps = False

    def dispatched(self, request: int, tokens: int | None, *, evacuated: bool = False, **_how: bool) -> None:
        if tokens is None:
            self.passing.add(request)
            return
        self.evacuated.append(evacuated)
        self.prompts.append(tokens)
        self.on_it.add(request)

    def progressed(self, _requests: object) -> None:
        self.progress += 1

    def finished(self, request: int, *, delivering: bool = False) -> None:
        self.unanswered += request in self.on_it and not delivering
        self.on_it.discard(request)
        self.passing.discard(request)

    def failed(self, reason: str, **how: bool) -> None:
        self.failures.append((reason, how))


class Counter:
    """Counts three tokens in every prompt, or `prompts`, or raises the next of `errors`."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.settled: list[int] = []
        self.source, self.prompts = Source.LOCAL, (3,)
        self.ids = b""
        """The token ids of every prompt."""
        self.takes: dict[str, IdsField] = {}
        """By base URL: the field in which an endpoint takes them."""
        self.handed_to: list[str | None] = []

    async def count(self, request: Any, **_for: object) -> PromptCount:
        if self.errors:
            raise self.errors.pop(0)
        return PromptCount(self.prompts, self.source, Kind(request.api), ids=self.ids, by=self)

    def ids_field(self, url: str) -> IdsField | None:
        return self.takes.get(url)

    def settle(self, _count: PromptCount, prompt_tokens: int, *, handed_to: str | None = None) -> None:
        self.settled.append(prompt_tokens)
        self.handed_to.append(handed_to)


class Client:
    """One request and what its client gets."""

    def __init__(self, plane: "FakePlane", path: str, body: bytes, method: str, headers: dict[str, str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self.takes: asyncio.Event | None = None
        """If set, it takes nothing until the event."""
        self.pace = 0.0
        """Seconds it takes for each message."""
        self._left = asyncio.Event()
        self._sent = False
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": ("peer", 1),
        }  # fmt: skip
        self._body = body
        self.task = asyncio.create_task(plane.gateway(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self.takes is not None:
            await self.takes.wait()
        if self.pace:
            await asyncio.sleep(self.pace)
        self.messages.append(message)

    def leave(self) -> None:
        self._left.set()

    async def ended(self) -> "Client":
        await self.task
        return self

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", self.messages[-1]["type"][-1] == "t")


class FakePlane:
    """The gateway, its endpoints' replies in turn, and the access lines of what has ended."""

    def __init__(self, *endpoints: str, ready: bool = True, **sections: dict[str, Any]) -> None:
        models = [{"endpoints": [{"url": f"http://{name}"} for name in ("a", "b")]}]
        self.settings = Settings.model_validate({"models": models, **sections})
        self.now = asyncio.get_running_loop().time
        self.replies: deque[Reply | Exception | asyncio.Event] = deque()
        """Before one may be an event: the connection is there once it is set."""
        self.sent: list[tuple[str, str, str, dict[str, str], bytes]] = []
        """Base URL, method, path, headers and body of each request."""
        self.alone: list[bool] = []
        """Of each, whether it was to have a connection of its own."""
        self.lines: list[dict[str, Any]] = []
        self.counter = Counter()
        self.flights = Flights(self.now, lambda: self.settings.upstream)
        self.directory = Directory(
            self._make_pool, lambda _: None, self.flights.evacuate, self.flights.expire, lambda _: None
        )
        self.admissions: dict[str, Admission] = {}
        self.awaits: list[Mapping[str, float]] = []
        """For engines of which models requests wait, as it was said."""
        self.tenants = Tenants(self.settings.auth.limits)
        self.cores = Cores(self._make_driver, self.directory)
        self.metrics = Metrics("0")
        self.plane = Plane(
            settings=self.settings,
            clients=read_named_files(self.settings).clients if self.settings.auth.keys else Clients({}, None),
            directory=self.directory,
            flights=self.flights,
            upstream=self,
            metrics=self.metrics,
            clock=self.now,
            lobby=Lobby(lambda: self.plane.settings.admission.queue),
            awaited=Awaited(self.awaits.append, lambda: asyncio.get_running_loop().time()),
            counting=self,
            bodies=Room(lambda: 2**30),
            hash_key=bytes(32),
            ids=count(1),
        )
        self.gateway = Gateway(self.plane, Reporter(self.metrics, self._log), None)
        for name in endpoints or ("a",):
            self.add(name)
            if ready:
                self.up(name)

    def _make_driver(self, model: str, _root: str | None) -> Driver:
        shares = self.settings.auth.kv_shares
        policy = self.settings.admission.to_policy(weights={}, kv_shares=shares, poll_interval=1.0)
        core, progressed = AdmissionController(policy), self.flights.progressed
        self.admissions[model], driver = paired(core, self.now, progressed, tenants=self.tenants)
        return driver

    def _make_pool(self, _endpoint: Endpoint, _identity: Identity, name: str) -> Pool:
        self.metrics.know(name)
        return Pool(name, self.admissions[name], self.counter, self.settings.upstream.relay_concurrency)

    def _log(self, **line: Any) -> None:
        self.lines.append(line)

    def add(self, name: str, /, **model: Any) -> Endpoint:
        """An endpoint that has yet to say what it serves. `model`: settings of what it is configured under."""
        settings = ModelSettings.model_validate({"endpoints": [{"url": f"http://{name}"}], **model})
        endpoint = Endpoint(EndpointId(name), f"http://{name}", None, settings, Watch())
        self.cores.add(endpoint.id, settings.name)
        self.directory.add(endpoint)
        return endpoint

    def up(
        self,
        name: str,
        *,
        model: str = "m",
        loras: tuple[str, ...] = (),
        sequences: int = 1,
        kind: str = VLLM.name,
        longest: int = 100,
    ) -> None:
        """The endpoint takes traffic for a model, so many sequences at a time, of at most `longest` tokens."""
        who = Identity(names=(model,), loras=loras, root=None, max_model_len=longest, version="0.32.0", kind=kind)
        self.cores.up(EndpointId(name), who, Capacity(longest, kv_blocks=100, max_num_seqs=sequences))

    @property
    def pool(self) -> Pool:
        return self.directory.pools["m"]

    @property
    def in_flight(self) -> int:
        """Requests with a reservation in a core, without those that were given up."""
        snapshots = [driver.controller.snapshot(self.now()) for driver in self.cores.drivers.values()]
        return sum(e.in_flight - e.aborting for snapshot in snapshots for e in snapshot.endpoints)

    def watch(self, name: str = "a") -> Watch:
        return self.directory.endpoints[EndpointId(name)].watch  # type: ignore[return-value]

    def ask(self, body: bytes = ASKED, *, path: str = CHAT, method: str = "POST", **headers: str) -> Client:
        """A client's request, under way."""
        return Client(self, path, body, method, headers)

    async def turns(self, count: int = 20) -> None:
        """Let everything happen that waits for nothing."""
        for _ in range(count):
            await asyncio.sleep(0)

    # The upstream, and the counting pool.

    async def send(
        self,
        base_url: str,
        method: str,
        path: str,
        headers: Any,
        body: bytes,
        *,
        alone: bool = False,
        sending: Callable[[], None],
    ) -> Reply:
        named = {name.decode(): value.decode() for name, value in headers}
        self.sent.append((base_url, method, path, named, body))
        self.alone.append(alone)
        while isinstance(reply := self.replies.popleft(), asyncio.Event):
            await reply.wait()
        if not isinstance(reply, ConnectFailedError):
            sending()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None: ...

    async def run(self, _flow: str, _size: int, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)


def asked(**fields: Any) -> bytes:
    """The body of a chat."""
    return json.dumps({"model": "m", "messages": [], "max_tokens": 4, **fields}).encode()


def error_of(client: Any) -> Any:
    """The error that a client got."""
    return json.loads(client.body)["error"]


def would(plane: FakePlane) -> dict[str, float]:
    """What `enforce` would have done, and how often."""
    return {
        sample.labels["decision"]: sample.value
        for family in plane.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "kvgate_would_total"
    }
