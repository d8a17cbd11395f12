"""One generation on its way to a client: tokens in, events out, and the faults between."""

import asyncio
from typing import Protocol

from tests.fakes.vllm.connection import Connection
from tests.fakes.vllm.faults import FRAMING, Fault, FaultKind
from tests.fakes.vllm.requests import ApiError, Generation
from tests.fakes.vllm.scheduler import Scheduler, Sequence
from tests.fakes.vllm.shapes import BUSY, DEAD, Shape, error_body

SPLIT_SECONDS = 0.002
"""Between the pieces of a split event: long enough that no reader sees them as one segment."""


class Sink(Protocol):
    """Where events go."""

    def send(self, event: bytes) -> None: ...

    def end(self) -> None: ...


class Host(Protocol):
    """What an answer needs of the server."""

    scheduler: Scheduler
    finished: dict[str, int]
    """Requests by finish reason."""

    def submit(self, sequences: list[Sequence]) -> None: ...

    def forget(self, answer: "Answer") -> None: ...


class Answer:
    """A request being answered as vLLM would."""

    def __init__(self, host: Host, connection: Connection, request: Generation, shape: Shape) -> None:
        self.host = host
        self.connection = connection
        self.request = request
        self.shape = shape
        self.sink: Sink = connection
        self.sequences = [
            Sequence(prompt, request.output_tokens, owner=self, index=number * request.n + choice)
            for number, prompt in enumerate(request.prompts)
            for choice in range(request.n)
        ]
        self._open = len(self.sequences)
        self._done = False
        self._opened = False

    def start(self) -> None:
        """Send what leaves before the engine is asked, then ask it."""
        self.connection.answer = self
        self._open_stream()
        self.host.submit(self.sequences)

    def on_token(self, sequence: Sequence) -> None:
        """A sequence got one more token."""
        if self._done:
            return
        if self.request.stream:
            self._stream_token(sequence)
        if sequence.generated >= sequence.output_tokens:
            self._finish_choice()

    def fail(self, error: ApiError) -> None:
        """End with an error, in the way this API does once its headers are out."""
        self._stop()
        if not self.request.stream:
            self.connection.respond(error.code, error_body(error, self.request.api))
            return
        events = self.shape.failure(error)
        if events is None or not self._opened:
            self.connection.close()
            return
        for event in events:
            self.sink.send(event)
        self.sink.end()

    def client_gone(self) -> None:
        """The client closed its connection: the engine drops the work."""
        self._stop()

    def _open_stream(self) -> None:
        if self.request.stream:
            self._opened = True
            self.connection.start_stream()
            for event in self.shape.opening():
                self.sink.send(event)

    def _stream_token(self, sequence: Sequence) -> None:
        number, index = sequence.generated, sequence.index
        if number == 1:
            for event in self.shape.first(index):
                self.sink.send(event)
        if number < sequence.output_tokens:
            self.sink.send(self.shape.token(index, b" %d" % (number - 1), number))
            return
        reason = self.request.finish_reason
        text = b"" if reason == "stop" else b" %d" % (number - 1)
        for event in self.shape.last(index, text, reason, number):
            self.sink.send(event)

    def _finish_choice(self) -> None:
        self._open -= 1
        reason = self.request.finish_reason
        self.host.finished[reason] = self.host.finished.get(reason, 0) + 1
        if self._open == 0:
            self._finish()

    def _finish(self) -> None:
        self._stop()
        completion = sum(sequence.generated for sequence in self.sequences)
        if not self.request.stream:
            reasons = [self.request.finish_reason] * len(self.sequences)
            self.connection.respond(200, self.shape.body(completion, reasons))
            return
        for event in self.shape.closing(completion):
            self.sink.send(event)
        self.sink.end()

    def _stop(self) -> None:
        self._done = True
        self.host.forget(self)


class FaultyAnswer(Answer):
    """An answer with a fault in it."""

    def __init__(self, host: Host, connection: Connection, request: Generation, shape: Shape, fault: Fault) -> None:
        super().__init__(host, connection, request, shape)
        self.fault = fault
        self._tokens = 0
        self._timer: asyncio.TimerHandle | None = None
        if fault.kind in FRAMING:
            self.sink = Framing(connection, fault)

    def start(self) -> None:
        kind = self.fault.kind
        if kind is FaultKind.HANG_BEFORE_HEADERS:
            self.connection.answer = self
        elif kind is FaultKind.BUSY_IN_STREAM:
            self._open_stream()
            self.fail(BUSY)
        elif kind is FaultKind.SLOW_PREFILL:
            self.connection.answer = self
            self._open_stream()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.fault.seconds, self.host.submit, self.sequences)
        else:
            super().start()

    def on_token(self, sequence: Sequence) -> None:
        if self._done:
            return
        if self._tokens == self.fault.after and self._strike(sequence):
            return
        self._tokens += 1
        super().on_token(sequence)

    def _strike(self, sequence: Sequence) -> bool:
        """Do what the fault does mid-stream; True if nothing follows."""
        match self.fault.kind:
            case FaultKind.ABORT:
                self._abort(sequence)
            case FaultKind.ENGINE_DEATH:
                self.fail(DEAD)
            case FaultKind.RESET_MID_STREAM:
                self._tear()
                self.connection.reset()
            case FaultKind.TRUNCATED:
                self._tear()
                if self.request.stream:
                    self.sink.end()
                else:
                    self.connection.close()
            case FaultKind.HANG_MID_STREAM:
                self._tear()
            case FaultKind.NO_FINISH if self.request.stream:
                self._stop()
                self.sink.send(self.shape.closing(self._tokens)[-1])
                self.sink.end()
            case FaultKind.GIGANTIC if self.request.stream:
                self.sink.send(self.shape.token(sequence.index, b"x" * self.fault.size, sequence.generated))
                return False
            case _:
                return False
        return True

    def _finish(self) -> None:
        if self.fault.kind is FaultKind.NO_DONE and self.request.stream:
            self._stop()
            self.sink.end()
        else:
            super()._finish()

    def _abort(self, sequence: Sequence) -> None:
        self._stop()
        if not self.request.stream:
            self.connection.respond(200, self.shape.body(self._tokens, ["abort"] * len(self.sequences)))
            return
        events = [] if self._tokens else self.shape.first(sequence.index)
        events += self.shape.last(sequence.index, b"", "abort", self._tokens)
        for event in [*events, *self.shape.closing(self._tokens)]:
            self.sink.send(event)
        self.sink.end()

    def _tear(self) -> None:
        """Stop generating; where a whole body was to come, half of it does."""
        self._stop()
        self.connection.answer = self
        if not self.request.stream:
            body = self.shape.body(self._tokens, [self.request.finish_reason] * len(self.sequences))
            self.connection.start_body(len(body))
            self.connection.transport.write(body[: len(body) // 2])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super()._stop()


class Framing:
    """Writes the right events in unusual ways."""

    def __init__(self, connection: Connection, fault: Fault) -> None:
        self._connection = connection
        self._fault = fault
        self._held: list[bytes] = []
        self._pieces: list[bytes | None] = []
        """What is left of a split; None ends the stream."""
        self._timer: asyncio.TimerHandle | None = None

    def send(self, event: bytes) -> None:
        match self._fault.kind:
            case FaultKind.KEEP_ALIVE_COMMENTS:
                self._connection.send(b": keep-alive\n\n")
                self._connection.send(event)
            case FaultKind.UNKNOWN_FIELDS:
                self._connection.send(event.replace(b"data: {", b'data: {"x_unknown":{"deep":[1,null]},', 1))
            case FaultKind.CRLF:
                self._connection.send(event.replace(b"\n", b"\r\n"))
            case FaultKind.COALESCE:
                self._held.append(event)
                if len(self._held) >= self._fault.pieces:
                    self._flush()
            case _:
                framed = b"%x\r\n%b\r\n" % (len(event), event)
                size = -(-len(framed) // self._fault.pieces)
                self._pieces += [framed[at : at + size] for at in range(0, len(framed), size)]
                self._pump()

    def end(self) -> None:
        self._flush()
        if self._fault.kind is FaultKind.SPLIT:
            self._pieces.append(None)
            self._pump()
        else:
            self._connection.end()

    def _flush(self) -> None:
        if self._held:
            self._connection.send(b"".join(self._held))
            self._held = []

    def _pump(self) -> None:
        if self._timer is None and self._pieces:
            self._timer = asyncio.get_running_loop().call_later(SPLIT_SECONDS, self._next_piece)

    def _next_piece(self) -> None:
        self._timer = None
        if self._connection.transport.is_closing():
            return
        piece = self._pieces.pop(0)
        if piece is None:
            self._connection.end()
            return
        self._connection.transport.write(piece)
        self._pump()
