"""The engine's own token counts, asked of its counting routes: of what kvgate cannot count, as images and audio."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Protocol

import msgspec

from gateway.runtime.places import Places
from gateway.tokens.count import CountUnavailableError, EngineUnreachedError
from gateway.tokens.engine_work import CountedIn, EngineCall, EngineWork
from gateway.tokens.probes import Reading
from gateway.tokens.render import cut
from gateway.wire.engine_kinds import VLLM, EngineKind, Meaning
from gateway.wire.request import InvalidRequestError
from gateway.wire.stream import error_message

_CONCURRENT_CALLS = 8
"""Most calls at once for one request: a list of a thousand prompts must not occupy the whole engine."""
_MOST_CALLS = 32
"""Most calls at once for all requests to a model; flows share them."""
_MOST_OF_FLOW = 24
"""Most of them for one flow: an engine may wait for a silent host of images, and with it all who need its count."""
_LONGEST_CALL = 4
"""Longest duration of a call, as a multiple of the longest silence."""
_LONG = 64 * 2**10
"""Most bytes read of an answer: enough for the count, which a million token ids may follow."""
_REFUSALS = frozenset({400, 413, 415, 422, 501})
"""Answers by which an engine refuses what it was asked, and not to be asked. (What it does not implement is 501.)"""
_LONGEST_LIST = 8 * 2**20
"""Most bytes read of an answer that lists token ids: a million of them, or a tenth of that with their texts."""
_MOST_ENTRIES = 2**19
"""Most braces in such a list: half of the tokens that fit may be one. More would hold the event loop for 0.2 s."""
_FIRST = re.compile(rb'\s*\{\s*"(?:count|input_tokens)"\s*:\s*(\d{1,9})\s*[,}]')


class UnansweredError(Exception):
    """An engine did not answer to the end, or not in time; the message says what happened, and nothing of a request."""


class Ask(Protocol):
    """Sends JSON to one engine, with its key, and reads the answer."""

    async def __call__(self, path: str, body: bytes, *, silence: float, longest: float, most: int) -> tuple[int, bytes]:
        """The status of the answer, and its beginning.

        Args:
            path: of the route.
            body: the question.
            silence: most seconds without a byte.
            longest: most seconds for all of it.
            most: bytes of the answer after which no more is read.

        Raises:
            UnansweredError: as it says.
            OutOfDescriptorsError: this process could not ask.
        """


@dataclass(frozen=True, slots=True)
class Target:
    """An engine to ask."""

    url: str
    """Base URL, without `/v1`; its name in what is said of it."""
    ask: Ask
    kind: EngineKind = VLLM


class UnreachedError(UnansweredError):
    """Likewise: it took no connection."""


class RouteMissingError(Exception):
    """This engine has no such counting route."""


class QuestionRefusedError(InvalidRequestError):
    """This engine refused to count. It words that for its own question: only the request's own route can say why."""


_Tokens = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]


class _Listed(msgspec.Struct):
    tokens: msgspec.Raw


class _Ids(msgspec.Struct):
    tokens: tuple[int, ...]


class _Entry(msgspec.Struct):
    """A token of TGI's answer. Nothing of it is kept."""


class _Templated(msgspec.Struct):
    tokenize_response: list[_Entry]


class _Answer(msgspec.Struct):
    count: _Tokens | None = None
    input_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens


class _Used(msgspec.Struct):
    usage: _Usage


class EngineCounter:
    """Counts by `/tokenize` and `/v1/messages/count_tokens`."""

    def __init__(self, targets: Callable[[], Sequence[Target]], timeout: Callable[[], float]) -> None:
        """Nothing is asked yet.

        Args:
            targets: the engines of this model that are up, the best to ask first.
            timeout: seconds for the longest silence in a call. The whole call may take four times as long.
        """
        self._targets = targets
        self._places = Places(_MOST_CALLS, _MOST_OF_FLOW)
        self._timeout = timeout

    def targets(self) -> Sequence[Target]:
        """The engines that may be asked now."""
        return self._targets()

    def kind(self) -> EngineKind:
        """The kind of the engine to ask first; vLLM's if none is up."""
        return next((target.kind for target in self._targets()), VLLM)

    async def count(
        self, work: EngineWork, max_model_len: int, *, flow: str, kind: EngineKind = VLLM
    ) -> tuple[int, ...]:
        """Count every prompt, by the first engine that answers and has the route.

        Args:
            work: the questions to ask.
            max_model_len: in tokens, for a request that asks for truncation to that length.
            flow: of the request, for its fair share of the calls.
            kind: of the engines that understand these questions.

        Raises:
            QuestionRefusedError: the engine refused to count it.
            InvalidRequestError: it cannot take the request, as it says.
            RouteMissingError: two have no such route, or one, and no other answered.
            CountUnavailableError: no engine answered.
            OutOfDescriptorsError: this process could not ask any.
        """
        failure, unreached = "no engine is up to count this request", False
        missing: RouteMissingError | None = None
        for target in self._targets():
            if target.kind is not kind:
                continue
            try:
                counts = await self.count_at(target, work, flow=flow)
            except CountUnavailableError as error:
                failure, unreached = str(error), isinstance(error, EngineUnreachedError)
            except RouteMissingError as error:
                if missing is not None:  # a second one: not all of many are asked
                    raise
                missing = error
            else:
                return tuple(cut(tokens, work.encoding, max_model_len) for tokens in counts)
        if missing is not None:
            raise missing
        raise (EngineUnreachedError if unreached else CountUnavailableError)(failure)

    async def count_at(self, target: Target, work: EngineWork, *, flow: str) -> tuple[int, ...]:
        """Count every prompt by one engine, untruncated. Raises as `count`."""
        counts = [0 if isinstance(prompt, EngineCall) else prompt for prompt in work.prompts]
        calls = [(number, prompt) for number, prompt in enumerate(work.prompts) if isinstance(prompt, EngineCall)]
        left = iter(calls)

        async def ask() -> None:
            for number, call in left:
                counts[number] = _READ[call.counted_in][0](await self._ask(target, call, flow))

        # Not one task per call: starting ten thousand would block the event loop.
        asking = [asyncio.ensure_future(ask()) for _ in calls[:_CONCURRENT_CALLS]]
        try:
            await asyncio.gather(*asking)
        finally:
            while asking:  # a task in a variable, with its exception, would keep this frame until the next collection
                asking.pop().cancel()
        return tuple(counts)

    async def read_at(self, target: Target, work: EngineWork, *, flow: str) -> Reading:
        """What one engine makes of a short request: also the ids of a single prompt, if listed. Raises as `count`."""
        if len(work.prompts) != 1 or not isinstance(call := work.prompts[0], EngineCall):
            return Reading(sum(await self.count_at(target, work, flow=flow)))
        answer = await self._ask(target, call, flow)
        ids = None
        if len(answer) <= _LONG:  # to decode a million would hold the event loop
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                ids = msgspec.json.decode(answer, type=_Ids).tokens
        return Reading(_READ[call.counted_in][0](answer), ids)

    async def used(self, target: Target, body: bytes, patience: float) -> int:
        """Have an engine answer a chat request; return its `usage.prompt_tokens`. Raises as `count`.

        `patience`: seconds, in place of the usual.
        """
        answer = await self._answer(target, "/v1/chat/completions", body, patience)
        try:
            return msgspec.json.decode(answer, type=_Used).usage.prompt_tokens
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise CountUnavailableError("the engine's usage cannot be read") from None

    async def _ask(self, target: Target, call: EngineCall, flow: str) -> bytes:
        await self._places.acquire(flow)
        try:
            return await self._answer(target, call.path, call.body, self._timeout(), _READ[call.counted_in][1])
        finally:
            self._places.release(flow)

    async def _answer(self, target: Target, path: str, body: bytes, silence: float, most: int = _LONG) -> bytes:
        longest = _LONGEST_CALL * silence
        try:
            status, answer = await target.ask(path, body, silence=silence, longest=longest, most=most)
        except UnansweredError as error:
            kind = EngineUnreachedError if isinstance(error, UnreachedError) else CountUnavailableError
            raise kind(f"{path} of the engine failed: {error}") from None
        if status == HTTPStatus.OK:
            return answer
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            raise RouteMissingError(path)
        if status in _REFUSALS:
            raise QuestionRefusedError(path)
        message = error_message(answer)
        if target.kind.meaning(status, message) is Meaning.INVALID:
            raise InvalidRequestError(message)
        raise CountUnavailableError(f"{path} of the engine answered {status}")


def _count(body: bytes) -> int:
    """The count in an answer, which comes first (`TokenizeResponse`, vLLM 0.8.5 to 0.33)."""
    first = _FIRST.match(body)
    if first is not None:
        return int(first[1])
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CountUnavailableError("the engine's count cannot be read") from None
    count = answer.count if answer.count is not None else answer.input_tokens
    if count is None:
        raise CountUnavailableError("the engine's answer holds no count")
    return count


def _length(body: bytes) -> int:
    """The number of token ids in an answer that lists them."""
    try:
        ids = bytes(msgspec.json.decode(body, type=_Listed).tokens).strip(b"[] \n")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CountUnavailableError("the engine's list of tokens cannot be read, or is too long") from None
    return ids.count(b",") + 1 if ids else 0


def _entries(body: bytes) -> int:
    """The number of objects in TGI's answer."""
    if body.count(b"{") > _MOST_ENTRIES:
        raise CountUnavailableError("the engine's list of tokens is too long")
    try:
        answer = msgspec.json.decode(body, type=_Templated | list[_Entry])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CountUnavailableError("the engine's list of tokens cannot be read, or is too long") from None
    return len(answer.tokenize_response if isinstance(answer, _Templated) else answer)


_READ: dict[CountedIn, tuple[Callable[[bytes], int], int]] = {
    CountedIn.NUMBER: (_count, _LONG),
    CountedIn.TOKENS: (_length, _LONGEST_LIST),
    CountedIn.ENTRIES: (_entries, _LONGEST_LIST),
}
"""The reader of each answer, and the most bytes read of it."""
