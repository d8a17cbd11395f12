"""A front's questions to the owner of the decisions: the state, all figures, what would become of a request."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from gateway.admission.commands import Reject
from gateway.admission.events import Arrived, RequestId
from gateway.admission.explanation import Explanation
from gateway.admission.outcomes import Outcome
from gateway.admission.snapshot import Turn
from gateway.ops.pictures.picture import Picture
from gateway.ops.state import Decided, UnknownEndpointError, UnknownModelError
from gateway.pools.admission import RejectedError
from gateway.tier.frames import Answer, AskTurn, Explain, Look, Question, Scrape, ShowState

ANSWERED_WITHIN = 5.0
"""Seconds for the answer to a question about the state, or about figures."""


class Questions:
    """Those of one front. An owner that is lost leaves some open: the next one is asked again.

    Args:
        send: sends a message, if there is an owner now.
    """

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._send = send
        self._open: dict[int, tuple[Question, asyncio.Future[bytes | None]]] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Question]:
        """Those that are open."""
        return (question for question, _ in self._open.values())

    async def explained(self, model: str, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now.

        Raises:
            RejectedError: the owner does not know the model.
        """
        body = await self._ask(Explain(self._next(), model, arrival))
        if body is None:
            raise RejectedError(Reject(arrival.request, Outcome.NO_ENDPOINT, 1.0))
        return msgspec.json.decode(body, type=Explanation)

    async def turn(self, request: RequestId) -> Turn | None:
        """The turn of a waiting request."""
        body = await self._ask(AskTurn(self._next(), request))
        return None if body is None else msgspec.json.decode(body, type=Turn)

    async def decided(self) -> Decided:
        """See `gateway.ops.state.Deciding`."""
        return await self._state()

    async def drain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._state(drain=endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._state(undrain=endpoint_id)

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """See `gateway.ops.state.Deciding`."""
        if await self._ask(ShowState(self._next(), give=(model, adapter, path))) is None:
            raise UnknownModelError(model)

    async def picture(self, after: float) -> Picture:
        """See `gateway.ops.state.Deciding`."""
        return msgspec.json.decode(await self._ask(Look(self._next(), after)) or b"", type=Picture)

    async def exposition(self, *, openmetrics: bool) -> bytes:
        """The metrics of all processes, as text."""
        return await self._ask(Scrape(self._next(), openmetrics)) or b""

    def answered(self, message: Answer) -> None:
        """The owner has answered."""
        _question, answer = self._open.get(message.number, (None, None))
        if answer is not None and not answer.done():
            answer.set_result(message.body)

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _state(self, drain: str | None = None, undrain: str | None = None) -> Decided:
        body = await self._ask(ShowState(self._next(), drain, undrain))
        if body is None:
            raise UnknownEndpointError(drain or undrain)
        return Decided.model_validate_json(body, extra="ignore")  # of a later release

    async def _ask(self, question: Question) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._open[question.number] = question, answer
        self._send(question)
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await answer
        finally:
            del self._open[question.number]
