"""The fake server: HTTP in front, the scheduler behind, and a clock between them."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.fakes.vllm.answers import Answer, FaultyAnswer
from tests.fakes.vllm.connection import Connection, Phases, SeenRequest
from tests.fakes.vllm.exposition import Counters, Gauges, exposition
from tests.fakes.vllm.faults import Fault, FaultKind, FaultPlan
from tests.fakes.vllm.requests import Api, ApiError, Generation, Tokenize, decode, read, tokenize_words
from tests.fakes.vllm.responses_shape import ResponsesShape
from tests.fakes.vllm.routes import no_response, route
from tests.fakes.vllm.scheduler import Scheduler, Sequence, Step
from tests.fakes.vllm.shapes import BUSY, DEAD, ChatShape, CompletionShape, MessagesShape, Shape, error_body

SHAPES: dict[Api, Callable[[Generation, str, int], Shape]] = {
    Api.CHAT: ChatShape,
    Api.BATCH: ChatShape,
    Api.COMPLETIONS: CompletionShape,
    Api.MESSAGES: MessagesShape,
    Api.RESPONSES: ResponsesShape,
}
ID_PREFIX = dict.fromkeys(Api, "chatcmpl") | {Api.COMPLETIONS: "cmpl", Api.RESPONSES: "resp"}
ASKS_LENGTH = b'"allowed_token_ids":[0]'
"""In kvgate's question whether `max_tokens` is cut to the length. It is a probe, and not kept."""


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """How big and how fast the fake engine is."""

    model: str = "fake"
    root: str = "fake"
    """Where `/v1/models` says the model came from."""
    max_model_len: int = 2048
    num_blocks: int = 257
    """One of them is the null block."""
    block_size: int = 32
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    max_queued: int | None = None
    """Requests the engine takes before it says 503; None is vLLM's default, no limit."""
    step_seconds: float = 0.002
    """One decode step of all that runs."""
    phases: int = 1
    """Turns in which the events of a step leave, spread over its time: connection by connection."""
    prefill_seconds: float = 0.0
    """Added to a step for each prompt token in it."""
    output_tokens: int = 64
    """Tokens of an answer that no limit cuts short, its end of sequence with them."""
    loras: tuple[str, ...] | None = None
    """Adapters it has at its start; None: it has no routes for them."""
    sleep: str = "works"
    """`works`, `fails`, or `missing`: without development mode there is no route for it."""
    keep_alive: float = 5.0
    """Seconds until an idle connection is closed, vLLM's default."""

    def __post_init__(self) -> None:
        if self.max_model_len > (self.num_blocks - 1) * self.block_size:
            raise ValueError("max_model_len does not fit the KV cache: a sequence could never finish")


_MOST_SEEN = 20_000
_TURNS = 4
"""Turns of the event loop after which asyncio has made a protocol of every connection that it accepted."""


class FakeVllm:
    """A vLLM server without a model.

    `async with FakeVllm() as fake:` listens on a free port of 127.0.0.1 and serves at `fake.url` until the block ends;
    with `uds` on a unix socket of that path, as vLLM's `--uds`.
    `fake.faults.add(Fault(...))` breaks a request to come, `fake.seen` holds the requests that came.
    """

    def __init__(
        self,
        settings: FakeSettings | None = None,
        *,
        faults: Iterable[Fault] = (),
        tokenize: Tokenize = tokenize_words,
        uds: str | None = None,
    ) -> None:
        self.settings = settings or FakeSettings()
        phases = self.settings.phases
        self._phases = Phases(phases, self.settings.step_seconds / phases) if phases > 1 else None
        self.faults = FaultPlan()
        for fault in faults:
            self.faults.add(fault)
        self.seen: list[SeenRequest] = []
        """Requests to the public API, oldest first; probes and scrapes are not kept, nor all of very many."""
        self.tokenize = tokenize
        self.scheduler = Scheduler(
            self.settings.num_blocks,
            self.settings.block_size,
            self.settings.max_num_seqs,
            self.settings.max_batched_tokens,
        )
        self.finished: dict[str, int] = {}
        self.rejections = 0
        self.awake: bool = True
        self.sleep = self.settings.sleep
        self.responses: set[str] = set()
        self.loras = dict.fromkeys(self.settings.loras or (), "")
        """Paths of its adapters, by name."""
        self.gauges = Gauges()
        self.port = 0
        self.uds = uds
        self.background: list[asyncio.Task[None]] = []
        """Controls that take time."""
        self._frozen = False
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._answers: set[Answer] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.uds is None else f"unix:{self.uds}"

    async def __aenter__(self) -> Self:
        await self.listen(self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def listen(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Accept connections; after `refuse`, on the port it had."""
        loop = asyncio.get_running_loop()
        if self.uds is not None:
            self._server = await loop.create_unix_server(self._connect, self.uds, backlog=4096)
            return
        self._server = await loop.create_server(self._connect, host, port or self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse new connections; those that exist go on."""
        if self._server is not None:
            server, self._server = self._server, None
            # What was accepted in this turn of the loop joins the server in a later one, or its socket is lost.
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            server.close()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop at once, whatever is in flight."""
        for task in self.background:
            task.cancel()
        await self.refuse()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    async def die(self) -> None:
        """Do as a vLLM whose engine process was killed: fail what is in flight, then refuse everything."""
        await self.refuse()
        for answer in list(self._answers):
            answer.fail(DEAD)
        for connection in list(self._connections):
            connection.close()

    def freeze(self, *, asleep: bool = False) -> None:
        """Stop computing: requests hang, gauges stay as they are, `/health` is 200. `asleep` shows in one gauge."""
        self._frozen = True
        self.awake = not asleep

    def thaw(self) -> None:
        """Compute again."""
        self._frozen = False
        self.awake = True
        self._wake()

    def block(self, seconds: float) -> None:
        """Compute on the event loop, as vLLM does while it writes one large answer: connections wait, nothing moves."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    def submit(self, sequences: list[Sequence]) -> None:
        """Give the engine work."""
        for sequence in sequences:
            self.scheduler.add(sequence)
        self._wake()

    def forget(self, answer: Answer) -> None:
        """Drop an answer that is complete or whose client is gone."""
        self._answers.discard(answer)
        for sequence in answer.sequences:
            self.scheduler.abort(sequence)
        if self._timer is None and not self._frozen:
            self._observe()

    def metrics(self) -> bytes:
        """The page of `/metrics`."""
        scheduler = self.scheduler
        counters = Counters(
            scheduler.preemptions,
            scheduler.prompt_tokens,
            scheduler.generation_tokens,
            scheduler.completed,
            scheduler.completed_prompt,
            scheduler.completed_output,
            self.finished,
            self.rejections,
        )
        cache_config = {
            "block_size": scheduler.block_size,
            "num_gpu_blocks": scheduler.num_blocks,
            "kv_cache_size_tokens": scheduler.num_blocks * scheduler.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.92,
        }
        return exposition(self.settings.model, self.gauges, counters, awake=self.awake, cache_config=cache_config)

    def _connect(self) -> Connection:
        connection = Connection(
            self._accepted, self._on_request, self.settings.keep_alive, self._connections, self._phases
        )
        self._accepted += 1
        return connection

    def _on_request(self, connection: Connection, seen: SeenRequest) -> None:
        path = urlsplit(seen.path).path
        if path == Api.COMPLETIONS and ASKS_LENGTH in seen.body:
            connection.respond(200, b"data: [DONE]\n\n", "text/event-stream")
            return
        if path.startswith("/v1/"):
            self.seen.append(seen)
            if len(self.seen) > _MOST_SEEN:
                del self.seen[: _MOST_SEEN // 2]
        fault = self.faults.take(path, seen.body, reused_connection=connection.requests > 1)
        if fault is not None and fault.kind in (FaultKind.CLOSE_BEFORE_ANSWER, FaultKind.STALE_KEEP_ALIVE):
            connection.close()
            return
        try:
            if fault is not None and fault.kind is FaultKind.STATUS:
                raise BUSY if fault.status == BUSY.code else ApiError(fault.status, "Injected.", "Injected")
            if seen.method == "POST" and path in SHAPES:
                self._generate(connection, seen, Api(path), fault)
            elif fault is None or fault.kind is not FaultKind.HANG_BEFORE_HEADERS:
                connection.respond(*route(self, seen, path))
        except ApiError as error:
            connection.respond(error.code, error_body(error, path))
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # pydantic would have refused the body
            connection.respond(400, error_body(ApiError(400, repr(error), "Bad Request"), path))

    def _generate(self, connection: Connection, seen: SeenRequest, api: Api, fault: Fault | None) -> None:
        settings = self.settings
        try:
            body = decode(seen.body)
            if api is Api.RESPONSES and (previous := body.get("previous_response_id")) not in {None, *self.responses}:
                raise no_response(str(previous))
            request = read(
                api,
                body,
                models=(settings.model, *self.loras),
                max_model_len=settings.max_model_len,
                natural=settings.output_tokens,
                tokenize=self.tokenize,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ApiError(400, f"1 validation error:\n  {error}", "Bad Request") from error
        if settings.max_queued is not None and self.scheduler.unfinished >= settings.max_queued:
            self.rejections += 1
            raise BUSY
        given = None if api is Api.RESPONSES else seen.header("x-request-id")
        joint = "_" if api is Api.RESPONSES else "-"
        unique = hashlib.sha256(f"{self.port}/{connection.number}/{connection.requests}".encode()).hexdigest()[:16]
        request_id = f"{ID_PREFIX[api]}{joint}{given or unique}"
        if api is Api.RESPONSES:
            self.responses.add(request_id)
        shape = SHAPES[api](request, request_id, int(time.time()))
        answer = (
            Answer(self, connection, request, shape)
            if fault is None
            else FaultyAnswer(self, connection, request, shape, fault)
        )
        self._answers.add(answer)
        answer.start()

    def _wake(self) -> None:
        if self._timer is None and not self._frozen and self.scheduler.unfinished:
            self._next = asyncio.get_running_loop().time()
            self._begin_step()

    def _begin_step(self) -> None:
        loop = asyncio.get_running_loop()
        step = self.scheduler.step()
        duration = self.settings.step_seconds + step.prefilled * self.settings.prefill_seconds
        self._next = max(self._next + duration, loop.time())
        self._timer = loop.call_at(self._next, self._end_step, step)

    def _end_step(self, step: Step) -> None:
        self._timer = None
        for sequence in step.emitted:
            sequence.owner.on_token(sequence)
        if self._frozen:
            return
        self._observe()
        if self.scheduler.unfinished:
            self._begin_step()

    def _observe(self) -> None:
        scheduler = self.scheduler
        self.gauges = Gauges(len(scheduler.running), len(scheduler.waiting), scheduler.usage)
