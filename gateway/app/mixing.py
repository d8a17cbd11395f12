"""The check of an endpoint against those of another kind that serve its model: they must count alike."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import httpx

from gateway.admission.events import EndpointId
from gateway.app.questions import Questions
from gateway.config.endpoint import asked_at
from gateway.endpoints.identity import Identity
from gateway.pools.cores import Cores
from gateway.tokens.count import CountUnavailableError
from gateway.tokens.engine_count import EngineCounter, RouteMissingError, Target, UnansweredError
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.probes import MAX_MODEL_LEN, Probe, probes
from gateway.tokens.work import WORK
from gateway.wire.engine_kinds import KINDS
from gateway.wire.request import InvalidRequestError

AGAIN = 10.0
"""Seconds after which an endpoint that still takes no traffic is compared again."""
_FLOW = "parity"


class _Found(NamedTuple):
    """What a comparison found: the reason against an endpoint with this identity beside another one.

    `lasts`: it does while that one is down, and is not that one of them could not be asked.
    """

    at: float
    identity: Identity
    reason: str | None
    lasts: bool
    beside: EndpointId


class Mixing:
    """Compares the counts of endpoints, which are asked for them.

    Args:
        cores: know which endpoint serves what.
        questions: have a client for each endpoint.
        timeout: seconds for the longest silence in a question.
        clock: monotonic seconds.
    """

    def __init__(
        self, cores: Cores, questions: Questions, *, timeout: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._cores = cores
        self._questions = questions
        self._counter = EngineCounter(lambda: (), timeout)
        self._clock = clock
        self._found: dict[EndpointId, _Found] = {}

    async def misfit(self, endpoint: EndpointId, identity: Identity) -> str | None:
        """Why an endpoint may not serve its model beside those that do; None if it may.

        One that may not does not take the place of the other while that is only down.
        """
        other = self._cores.of_another_kind(endpoint, identity)
        found = self._found.get(endpoint)
        if found is not None and found.identity != identity:
            found = None
        if other is None:
            if found is not None and found.lasts and self._cores.differ(endpoint, identity, found.beside):
                return found.reason
            self._found.pop(endpoint, None)
            return None
        if found is not None and self._clock() - found.at < AGAIN:
            return found.reason
        lasts = True
        try:
            reason = await self._difference((endpoint, identity), other)
        except CountUnavailableError as error:
            reason, lasts = f"that could not be asked: {error}", False
        if reason is not None:
            reason = (
                f"{identity.kind} may serve this model beside {other[0]} ({other[1].kind}) only if they count alike, "
                f"and {reason}: give it a `name` of its own"
            )
        self._found[endpoint] = _Found(self._clock(), identity, reason, lasts, other[0])
        return reason

    async def _difference(self, one: tuple[EndpointId, Identity], other: tuple[EndpointId, Identity]) -> str | None:
        for _, identity in (one, other):
            if identity.kind not in WORK:
                return f"{identity.kind} has no route that counts"
        compared = 0
        for here, there in zip(probes(one[1].names[0]), probes(other[1].names[0]), strict=True):
            counts = await asyncio.gather(self._count(*one, here), self._count(*other, there))
            if None in counts:
                continue  # who does not count it may refuse it: that is no wrong count
            compared += 1
            if counts[0] != counts[1]:
                return f'the probe "{here.name}" has {counts[0]} tokens here and {counts[1]} there'
        return None if compared else "there is no probe that both count"

    async def _count(self, endpoint: EndpointId, identity: Identity, probe: Probe) -> int | None:
        target = Target(endpoint, _Asking(self._questions, endpoint), KINDS[identity.kind])
        try:
            work = WORK[identity.kind](probe.api, probe.body, MAX_MODEL_LEN)
            return sum(await self._counter.count_at(target, work, flow=_FLOW))
        except (InvalidRequestError, RouteMissingError, NeedsEngineError):
            return None


class _Asking:
    """Asks an endpoint with the client of its probes. Implements `gateway.tokens.engine_count.Ask`."""

    def __init__(self, questions: Questions, endpoint: EndpointId) -> None:
        self._client, self._base_url = questions.client(endpoint), asked_at(questions.base_url(endpoint))

    async def __call__(self, path: str, body: bytes, *, silence: float, longest: float, most: int) -> tuple[int, bytes]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        read = bytearray()
        try:
            async with (
                asyncio.timeout(longest),
                self._client.stream(
                    "POST", self._base_url + path, content=body, headers=headers, timeout=silence
                ) as answer,
            ):
                async for part in answer.aiter_raw():
                    read += part
                    if len(read) > most:
                        break
                return answer.status_code, bytes(read)
        except TimeoutError:
            raise UnansweredError("it did not come to an end in time") from None
        except httpx.HTTPError as error:
            raise UnansweredError(str(error) or type(error).__name__) from None
