"""The owners and holders of stored responses.

An engine gives a response to everybody who knows its id; kvgate does not. Only the engine that made it has it.
"""

from dataclasses import replace

from gateway.admission.events import EndpointId
from gateway.admission.outcomes import Outcome
from gateway.pools.stored_responses import StoredResponse
from gateway.relay.client_identity import Client
from gateway.relay.demand import Asked, Work
from gateway.relay.exchange import RefusedError
from gateway.relay.plane import Plane
from gateway.tokens.count import PromptCount, Source
from gateway.wire.usage import Usage


def stored(plane: Plane, client: Client, response_id: str) -> StoredResponse:
    """The response with this id.

    Raises:
        RefusedError: it is not known here, or not its client's.
    """
    response = plane.directory.stored_response(response_id)
    if response is None or not _owns(client, response):
        raise _unknown("response_id")
    return response


def refuse_others(plane: Plane, asked: Asked) -> None:
    """Refuse a request that may go on with the response of another key, or take its id.

    Raises:
        RefusedError: it may. A response that is not known here may be anybody's.
    """
    request, client = asked.request, asked.client
    if not client.keyed:
        return
    if request.previous_response_id is not None:
        response = plane.directory.stored_response(request.previous_response_id)
        if response is None or not _owns(client, response):
            raise _unknown("previous_response_id")
    if request.response_id is not None:
        message = "`request_id` cannot be set by a client with a key: the response of another key may have this id."
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "request_id")


def holder(plane: Plane, response_id: str | None) -> EndpointId | None:
    """The endpoint that has the stored response with this id, if that is known here."""
    response = None if response_id is None else plane.directory.stored_response(response_id)
    return None if response is None else response.endpoint


class Made:
    """The response that a request makes, if it is stored."""

    def __init__(self, plane: Plane, work: Work) -> None:
        self._plane = plane
        self._work = work
        self._made: tuple[str, EndpointId] | None = None

    def begun(self, response_id: str, endpoint: EndpointId) -> None:
        """Note its id, before its client learns that: the client may ask for it at once."""
        if self._work.request.stored:
            self._made = response_id, endpoint
            self._remember(0)

    def ended(self, usage: Usage | None) -> None:
        """Note what a request that goes on with it brings along."""
        if usage is not None:
            self._remember(usage.prompt_tokens + usage.completion_tokens)

    def _remember(self, tokens: int) -> None:
        if self._made is not None:
            response_id, endpoint = self._made
            request, client = self._work.request, self._work.client
            key = client.flow if client.keyed else None
            response = StoredResponse(endpoint, request.model or self._work.pool.name, key, tokens)
            self._plane.directory.remember_response(response_id, response)


def brought_along(plane: Plane, response_id: str | None) -> int:
    """The tokens that a request brings along by the stored response with which it goes on, as far as they are known.

    It may bring fewer, as without their reasoning: no limit that kvgate sets for it may follow from them.
    """
    response = None if response_id is None else plane.directory.stored_response(response_id)
    return 0 if response is None else response.tokens


def with_earlier(count: PromptCount, tokens: int) -> PromptCount:
    """The count of a request that brings so many tokens along."""
    if not tokens:
        return count
    return replace(count, prompts=tuple(prompt + tokens for prompt in count.prompts), source=Source.ESTIMATE)


def _owns(client: Client, response: StoredResponse) -> bool:
    return client.may_use(response.model) and response.key in (None, client.flow)


def _unknown(param: str) -> RefusedError:
    message = "This response is not known here: it was not made through this gateway, or long ago."
    return RefusedError(Outcome.RESPONSE_NOT_FOUND, message, param)
