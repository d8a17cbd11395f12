"""The reader of answers on their way to the client: forwards whole events and notes what they say about the end.

An event is decoded only if it carries one of its protocol's marks: a finish reason, usage, an error, the end. A few
byte searches find these, so an ordinary token costs almost nothing.
"""

import itertools
import re
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from gateway.wire.engine_kinds import Meaning, meaning
from gateway.wire.passing_usage import PassingUsage
from gateway.wire.request import Api
from gateway.wire.usage import Usage, UsageFields

MAX_EVENT_BYTES = 2**20
"""An event is held until it is complete, up to this size. A larger one passes through in pieces. The Responses API
repeats tools and the whole answer in events, so of these the id, the counts and the end are read all the same."""


class FailureKind(Enum):
    """The kind of failure inside an answer with status 200."""

    BUSY = auto()
    """The engine has no room: a 503 in an event, not as a status."""
    REFUSED = auto()
    """The engine refuses the request: a 4xx in an event."""
    ENGINE_ERROR = auto()
    ABORTED = auto()
    """The engine gave the request up, as it does when it shuts down: `finish_reason` "abort"."""
    UNFINISHED = auto()
    """The stream ended without a finish reason."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure inside an answer.

    Attributes:
        status: the engine's code for it.
        message: for people; the engine's own sentence if it gave one.
        event: the engine's own event to pass on; None if there is none.
    """

    kind: FailureKind
    status: int
    message: str
    event: bytes | None = None


_PAGE = Failure(FailureKind.ENGINE_ERROR, 502, "a web page came in place of its answer: a proxy sent it")
_ABSENT = msgspec.Raw(b"null")


class _Choice(msgspec.Struct, gc=False):
    index: int = 0


class _Response(msgspec.Struct):
    id: str | None = None
    status: str | None = None
    usage: UsageFields | None = None


class _Event(msgspec.Struct):
    """Every field read from the four protocols' events and bodies."""

    type: str | None = None
    choices: msgspec.Raw = _ABSENT
    usage: UsageFields | None = None
    error: msgspec.Raw = _ABSENT  # an optional `Raw` would accept only null
    response: _Response | None = None
    code: int | str | None = None
    status: str | None = None
    id: str | None = None

    @property
    def failed(self) -> bool:
        """Whether there is an `error` that is not null."""
        return bytes(self.error) != b"null"


class _Start(msgspec.Struct):
    """The first event of `/v1/messages`. In other events and in errors `message` is a text."""

    message: _Response


class _Error(msgspec.Struct):
    message: str = "the engine gave no reason"
    code: int | str | None = None
    http_status_code: int | None = None
    """TGI's code."""


_EVENT = msgspec.json.Decoder(_Event)
_START = msgspec.json.Decoder(_Start)
_ERROR = msgspec.json.Decoder(_Error)
_CHOICE_LIST = msgspec.json.Decoder(list[_Choice])
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BOUNDARY = re.compile(rb"\n\r?\n")
_BOUNDARY_BYTES = 3
"""The last bytes sent that may begin an event boundary which the next bytes complete."""
_COMMENT = re.compile(rb"(?:^|(?<=\n\n)):[^\n]*\n\n")
"""An event that is only a comment. Engines send one while they have nothing to say: vLLM with
`--sse-keep-alive-interval`, llama-server by itself, each second or each 30."""
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)
_FINISHED = re.compile(rb'"finish_reason":\s*"([^"]{0,40})')
"""Searched for in the undecoded choices: inside a text the quotes are escaped, and a list of any length costs no more
than its bytes."""
_ABORT = b"abort"
_MOST_REASONS = 128
"""Finish reasons kept of an answer of many sequences."""
_DONE = b"[DONE]"
_LONGEST_MESSAGE = 4096
_MOST_OF_CHOICES = 64 * 2**10
"""Most bytes of an event's choices in which sequences are told apart."""
_MOST_READ = 2048
"""Most events with a mark, or comments, that are read in one piece; engines write one or a few."""
_WRAPPED_CODE = re.compile(
    r"\d+ validation errors? for \w+\n[\w.]+\n.{0,80}input_value=\{'error': .{0,60}"
    r"'code': (\d{3})\}\}, input_type=dict\]"
)
"""The status of an error in `/v1/messages`: vLLM takes its own error for a chunk that does not validate. Of its text
this shows a few letters, so no client can write what is read here."""

_CHOICES = (b'finish_reason":"', b'finish_reason": "', b'"usage":{', b'"usage": {', b"[DONE]", b'{"error"')
_MARKS: dict[Api, tuple[bytes, ...]] = {
    Api.CHAT: _CHOICES,
    Api.BATCH: _CHOICES,
    Api.COMPLETIONS: _CHOICES,
    Api.RESPONSES: (b'"response.c', b'"response.f', b'"response.inc', b'"error"'),
    Api.MESSAGES: (b'"message_', b'"error"'),
}
"""The marks; an event without any is an ordinary token. Engines write their JSON without spaces; some put
none after `data:`, either. Servers elsewhere may write it as Python's `json` does. Types are looked for in the JSON:
some write no line `event:`."""

_ANY_EVENT = b"\n\n"
_TOKEN_MARK: dict[Api, bytes] = {
    Api.CHAT: _ANY_EVENT,
    Api.BATCH: _ANY_EVENT,
    Api.COMPLETIONS: _ANY_EVENT,
    Api.RESPONSES: b".delta\ndata",
    Api.MESSAGES: b"event: content_block_delta",
}
"""Text that occurs once per generated token, unless the engine merges several into one event."""
_TEXT_FIELD: dict[Api, bytes] = {
    Api.CHAT: b'"content":"',
    Api.BATCH: b'"content":"',
    Api.COMPLETIONS: b'"text":"',
    Api.RESPONSES: b'"delta":"',
    Api.MESSAGES: b'"text":"',
}
"""The beginning of a token's text."""
_SINGLES: dict[Api, int] = {Api.CHAT: 2, Api.COMPLETIONS: 1}
"""Number of first events of each sequence that hold at most one token, whatever interval the client wants."""

_PRELIMINARY = tuple(
    b'"type":%b"response.%b"' % (space, state) for space in (b"", b" ") for state in (b"created", b"in_progress")
)
"""Marks of events that promise nothing: the Responses API sends two before the engine has even taken the request."""
_ID = re.compile(
    rb'(?:event:[^\n]*\n)?(?:data:)?\s*\{\s*(?:"(?:type|sequence_number)":\s*"?[\w.]+"?,\s*)*'
    rb'(?:"response":\s*\{\s*)?"id":\s*"([^"\\]{1,1000})"'
)
"""The id of a response where its answer or event begins with it. Further on a client's tools could have one."""
_MOST_BEFORE_ID = 2048
_FINISHING_EVENTS = frozenset({"response.completed", "response.incomplete", "message_delta"})
_CLOSING_EVENTS = frozenset({"response.completed", "response.incomplete", "message_stop"})
_CLOSING_LINES = tuple(b"event: %b" % name.encode() for name in _CLOSING_EVENTS)
"""The beginnings of these, as vLLM writes them."""


class StreamReader:
    """Follows one SSE answer.

    Args:
        api: the protocol.
        strip_usage: remove the one chunk that carries only usage: kvgate asked for it, not the client. It stays if the
            other chunks carry usage too: such an engine sends it to everybody (`--enable-force-include-usage`).
        interval: tokens that the client wants in each event.
        sequences: how many the stream has.

    Attributes:
        tokens: tokens seen so far over all sequences, as far as the events show.
        finished: whether a finish reason was seen.
        finish_reasons: those of its sequences, as `choices` bring them.
        closed: whether the protocol's last event was seen.
        usage: the engine's count, once seen.
        failure: set when the answer failed; nothing after it is forwarded.
        response_id: of the Responses API.
        torn: whether the last bytes that left end in the middle of an event.
    """

    __slots__ = (
        "_after_text",
        "_before",
        "_behind",
        "_ends",
        "_generated",
        "_generated_in_all",
        "_held_bytes",
        "_interval",
        "_last",
        "_marks",
        "_passing",
        "_prompt",
        "_sequences",
        "_singles",
        "_strip_usage",
        "_tail",
        "_text_at",
        "_text_field",
        "_token_mark",
        "_unread",
        "api",
        "closed",
        "failure",
        "finish_reasons",
        "finished",
        "response_id",
        "tokens",
        "torn",
        "usage",
    )

    def __init__(self, api: Api, *, strip_usage: bool, interval: int = 1, sequences: int = 1) -> None:
        self.api = api
        self.tokens = 0
        self.finished = False
        self.finish_reasons: tuple[str, ...] = ()
        self.closed = False
        self.torn = False
        self.usage: Usage | None = None
        self.failure: Failure | None = None
        self.response_id: str | None = None
        self._strip_usage = strip_usage
        self._interval = interval
        self._sequences = range(sequences)
        self._singles = _SINGLES.get(api, 0) * sequences
        self._generated: dict[int, int] = {}
        """Tokens of each sequence, if the engine reports them along the way."""
        self._generated_in_all = 0
        self._prompt: Usage | None = None
        """The engine's count as the first event of a message tells it; of its answer that knows nothing."""
        self._marks = _MARKS[api]
        self._token_mark = _TOKEN_MARK[api]
        self._tail: list[bytes] = []
        self._held_bytes = 0
        """Bytes of it."""
        self._last = b""
        """The last few bytes of the incomplete event, held back or not."""
        self._unread = False
        self._passing: PassingUsage | None = None
        """Of a response's event too large to hold."""
        self._ends = False
        """Whether that closes the stream."""
        self._text_field = _TEXT_FIELD[api]
        self._before, self._behind = b"", b"none yet"
        """What an ordinary event of this stream begins with, up to its text, and ends with, with its chunk."""
        self._text_at = self._after_text = 0
        """Their lengths."""

    def feed(self, data: bytes) -> bytes:
        """Take new bytes; return what may leave: complete events, and pieces of one too large to hold."""
        if self._held_bytes or self.torn or not data.endswith(b"\n\n"):
            data = self._complete(data)
        events = data.count(self._token_mark)
        if _may_comment(data) and self._token_mark == _ANY_EVENT:
            events -= sum(1 for _ in itertools.islice(_COMMENT.finditer(data), _MOST_READ))
        self.tokens += events if self._interval == 1 else self._held(events)
        return self._read(data) if self._marked(data) else data

    def passes(self, chunk: bytes, start: int) -> bool:
        """Whether a whole chunk may leave in the HTTP frame it came in: ordinary tokens, and nothing is held back.

        If so its tokens are counted; if not, `feed` is to read its content. `start`: where that begins.
        """
        if self._held_bytes or self.torn:
            return False
        text = start + self._text_at
        if (
            chunk.endswith(self._behind)
            and chunk.startswith(self._before, start)
            and chunk.find(b'"', text, len(chunk) - self._after_text) < 0
        ):
            events = 1
        else:
            if not chunk.endswith(b"\n\n\r\n") or self._marked(chunk) or _may_comment(chunk, start):
                return False
            events = chunk.count(self._token_mark, start)
            if events == 1:
                self._learn(chunk, start)
        self.tokens += events if self._interval == 1 else self._held(events)
        return True

    def _learn(self, chunk: bytes, start: int) -> None:
        """Take an ordinary event as the pattern of the next ones: they differ from it only in the text of their token.

        A text ends with its first quote. What precedes it ends with a field's name, and what follows begins with
        `",` or `"}`: so no text without a quote makes them a mark together that means anything.
        """
        field = self._text_field
        at = chunk.find(field, start) + len(field)
        end = chunk.find(b'"', at)
        if at > len(field) and chunk[end + 1 : end + 2] in (b",", b"}"):
            self._before, self._behind = chunk[start:at], chunk[end:]
            self._text_at, self._after_text = at - start, len(chunk) - end

    def _marked(self, data: bytes) -> bool:
        for mark in self._marks:  # noqa: SIM110  # for each event, and a generator costs as much as the searches
            if data.find(mark) >= 0:  # `in` raises and drops an exception first
                return True
        return False

    def _held(self, events: int) -> int:
        """Tokens in these events: all but the first ones of each sequence hold `interval` tokens."""
        single = min(events, self._singles)
        self._singles -= single
        return single + (events - single) * self._interval

    def end(self) -> bytes:
        """Note that the upstream body ended: release what was held; a missing end becomes a failure."""
        rest = b"".join(self._tail)
        self._tail, self._held_bytes = [], 0
        if rest and self.failure is None and not self._read_event(rest):
            rest = b""
        self._expect_finished("the engine's stream ended without a finish reason")
        return b"" if self.failure is not None else rest

    def _complete(self, data: bytes) -> bytes:
        """Hold back an incomplete last event."""
        if self.torn:
            return self._pass(data)
        # Search only what is new: an event may come in many pieces.
        window = self._last + data
        end = _end_of_events(window) - len(self._last)
        if end > 0:
            complete = b"".join((*self._tail, data[:end]))
            data = window = data[end:]
            self._tail, self._held_bytes = [], 0
        else:
            complete = b""
        self._tail.append(data)
        self._held_bytes += len(data)
        self._last = window[-_BOUNDARY_BYTES:]
        if self._held_bytes > MAX_EVENT_BYTES:
            complete += self._tear()
        return complete

    def _tear(self) -> bytes:
        """Let go what is held of an event too large to hold."""
        self.torn = self._unread = True
        held = b"".join(self._tail)
        self._tail, self._held_bytes = [], 0
        if self.api is Api.RESPONSES:
            self.response_id = self.response_id or response_id(held)
            self._ends = held.startswith(_CLOSING_LINES)
            self._passing = PassingUsage(depth=2)
            self._passing.feed(held)
        return held

    def _pass(self, data: bytes) -> bytes:
        """Let through the rest of an event that was too large to hold."""
        window = self._last + data
        boundary = _BOUNDARY.search(window)
        end = len(data) if boundary is None else boundary.end() - len(self._last)
        if self._passing is not None:
            self._passing.feed(data[:end])
        if boundary is None:
            self._last = window[-_BOUNDARY_BYTES:]
            return data
        self.torn, self._last = False, b""
        if self._passing is not None:
            self.usage = self._passing.read(self.api) or self.usage
            self._passing = None
        if self._ends:
            self.finished = self.closed = True
        return data[:end] + self._complete(data[end:])

    def _read(self, data: bytes) -> bytes:
        """Read each event with a mark; drop those that are not for the client."""
        start = len(data) - len(data.lstrip(b"\r\n"))  # the end of an event that was too large to hold
        forward = [data[:start]]
        for boundary in itertools.islice(_BOUNDARY.finditer(data, start), _MOST_READ):
            event = data[start : boundary.end()]
            start = boundary.end()
            keep = self._read_event(event)
            if self.failure is not None:
                return b"".join(forward)
            if keep:
                forward.append(event)
        rest = data[start:]  # an event too large to hold, or more events than any engine writes at once
        self._unread = self._unread or rest.endswith(b"\n\n")
        forward.append(rest)
        return b"".join(forward)

    def _expect_finished(self, otherwise: str) -> None:
        # An event that passed unread may have carried the finish reason.
        if not self.finished and not self._unread and self.failure is None:
            self.failure = Failure(FailureKind.UNFINISHED, 502, otherwise)

    def _read_event(self, event: bytes) -> bool:
        found = _DATA.search(event)
        if found is None:
            return True
        payload = found.group(1).strip()
        if payload == _DONE:
            self._expect_finished("the engine ended the stream without a finish reason")
            self.closed = True
            return True
        try:
            parsed = _EVENT.decode(payload)
        except _UNREADABLE:
            return True  # an unknown shape: leave it to the client
        if parsed.failed or parsed.type == "error":
            self.failure = _engine_failure(self.api, parsed, payload, event)
            return False
        if parsed.type == "message_start":
            self._prompt = _first_count(payload)
        return self._read_known(parsed, event)

    def _read_known(self, parsed: _Event, event: bytes) -> bool:
        response = parsed.response
        counts = parsed.usage or (response.usage if response is not None else None)
        reasons = _FINISHED.findall(parsed.choices)
        if counts is not None and (usage := counts.read(self.api)) is not None:
            self._used(usage, parsed.choices, last=self.finished or bool(reasons))
        if response is not None and response.id is not None:
            self.response_id = response.id
        cancelled = response is not None and response.status == "cancelled"
        if cancelled or parsed.type == "response.failed":
            kind = FailureKind.ABORTED if cancelled else FailureKind.ENGINE_ERROR  # that says nothing of other requests
            self.failure = Failure(kind, 502, "the engine gave the response up", event)
            return False
        if parsed.type in _FINISHING_EVENTS:
            self.finished = True
        if parsed.type in _CLOSING_EVENTS:
            self.closed = True
        if reasons:
            if _ABORT in reasons:
                self.failure = Failure(FailureKind.ABORTED, 502, "the engine gave the request up")
                return False
            self.finished = True
            self.finish_reasons = _kept(self.finish_reasons, reasons)
        return not (self._strip_usage and bytes(parsed.choices) == b"[]" and parsed.usage is not None)

    def _used(self, usage: Usage, choices: msgspec.Raw, *, last: bool) -> None:
        """Take the engine's count: of the whole answer, or of one sequence beside a piece of it.

        `last`: a sequence has ended. If it is the only one, its count is that of the whole answer, and some servers
        give no other.
        """
        if bytes(memoryview(choices)[:5]) in (b"[]", b"null"):
            first = self._prompt
            if first is not None and not usage.prompt_tokens:  # a llama-server says it once
                usage = Usage(first.prompt_tokens, usage.completion_tokens, first.cached_tokens)
            self.usage = usage
            return
        if not (usage.prompt_tokens or usage.completion_tokens):
            return  # an Ollama's, in each piece of a completion whose usage was asked for
        self._strip_usage = False
        if len(choices) > _MOST_OF_CHOICES:
            return
        try:
            known = _CHOICE_LIST.decode(choices)
        except _UNREADABLE:
            return  # an unknown shape: leave it to the client
        if last and len(self._sequences) == 1:
            self.usage = usage if all(choice.index == 0 for choice in known) else None
        for choice in known:
            if choice.index not in self._sequences:
                continue  # an engine could name new ones for ever
            self._generated_in_all += usage.completion_tokens - self._generated.get(choice.index, 0)
            self._generated[choice.index] = usage.completion_tokens
        self.tokens = max(self.tokens, self._generated_in_all)


def _first_count(payload: bytes) -> Usage | None:
    """The count in the first event of a message; None if it has none."""
    try:
        usage = _START.decode(payload).message.usage
    except _UNREADABLE:
        return None
    return None if usage is None else usage.read(Api.MESSAGES)


def _may_comment(data: bytes, start: int = 0) -> bool:
    """Whether an event may be a comment."""
    return data.startswith(b":", start) or data.find(b"\n\n:", start) >= 0


def _end_of_events(data: bytes) -> int:
    """The end of the last complete event."""
    plain, carried = data.rfind(b"\n\n"), data.rfind(b"\n\r\n")
    return max(plain + 2 if plain >= 0 else 0, carried + 3 if carried >= 0 else 0)


def _kept(before: tuple[str, ...], reasons: list[bytes]) -> tuple[str, ...]:
    room = _MOST_REASONS - len(before)
    return before + tuple(reason.decode("utf-8", "replace") for reason in reasons[:room])


def says_something(data: bytes) -> bool:
    """Whether there is more than comments in these events: an engine that hangs may go on to send those."""
    return bool(data) and not (data.startswith(b":") and is_preliminary(data))


def is_preliminary(data: bytes) -> bool:
    """Whether these events do not yet show that the engine will answer."""
    events = _BOUNDARY.split(data, maxsplit=_MOST_READ)
    return len(events) <= _MOST_READ and all(map(_promises_nothing, filter(None, events)))


def _promises_nothing(event: bytes) -> bool:
    return event.startswith(b":") or any(mark in event for mark in _PRELIMINARY)


def response_id(begins: bytes) -> str | None:
    """The id of the response whose answer, or event, begins so; None if another field comes first."""
    found = _ID.match(begins, 0, _MOST_BEFORE_ID)
    return None if found is None else found[1].decode("utf-8", "replace")


class BodyFacts(msgspec.Struct, frozen=True):
    """The facts of a complete, non-streaming answer."""

    usage: Usage | None
    failure: Failure | None
    response_id: str | None
    finish_reasons: tuple[str, ...] = ()


def read_body(api: Api, body: bytes) -> BodyFacts:
    """Read a complete 200 answer."""
    try:
        parsed = _EVENT.decode(body)
    except _UNREADABLE:
        return BodyFacts(None, _PAGE if is_page(body) else None, None)
    failure, reasons = None, _FINISHED.findall(parsed.choices)
    if parsed.failed:
        failure = _engine_failure(api, parsed, body, None)
    elif parsed.status == "cancelled" or _ABORT in reasons:
        failure = Failure(FailureKind.ABORTED, 502, "the engine gave the request up")
    usage = parsed.usage.read(api) if parsed.usage is not None else None
    return BodyFacts(usage, failure, parsed.id, _kept((), reasons))


def is_page(body: bytes) -> bool:
    """Whether this is a web page, as some proxies send with status 200 in place of what an engine would answer."""
    return body.lstrip().startswith(b"<")


def error_message(body: bytes) -> str:
    """The sentence in an engine's error body of any shape, cut to a sensible length."""
    try:
        parsed = _EVENT.decode(body)
        raw = bytes(parsed.error) if parsed.failed else body
        if raw.startswith(b'"'):
            return str(msgspec.json.decode(raw))[:_LONGEST_MESSAGE]
        return _ERROR.decode(raw).message[:_LONGEST_MESSAGE]
    except _UNREADABLE:
        return "the engine gave no reason"


def _engine_failure(api: Api, parsed: _Event, payload: bytes, event: bytes | None) -> Failure:
    message = error_message(payload)
    code: int | str | None = parsed.code
    if parsed.failed:
        try:
            error = _ERROR.decode(parsed.error)
            code = error.http_status_code if error.code is None else error.code
        except _UNREADABLE:
            code = None
    wrapped = _WRAPPED_CODE.match(message) if api is Api.MESSAGES and code is None else None
    if wrapped is not None:
        code = int(wrapped.group(1))
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500  # noqa: PLR2004
    if wrapped is not None and status == 503:  # noqa: PLR2004
        return Failure(FailureKind.BUSY, status, "the engine has no room", event)
    means = meaning(status, message)
    if means is Meaning.BUSY:
        return Failure(FailureKind.BUSY, status, message, event)
    refused = status < 500 and means is not Meaning.FAILED  # noqa: PLR2004
    return Failure(FailureKind.REFUSED if refused else FailureKind.ENGINE_ERROR, status, message, event)
