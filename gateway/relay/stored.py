"""The owners and holders of stored responses.

An engine gives a response to everybody who knows its id; kvgate does not. Only the engine that made it has it.
"""

from gateway.admission.events import EndpointId
from gateway.admission.outcomes import Outcome
from gateway.pools.stored_responses import StoredResponse
from gateway.relay.client_identity import Client
from gateway.relay.demand import Asked
from gateway.relay.exchange import RefusedError
from gateway.relay.plane import Plane


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


def _owns(client: Client, response: StoredResponse) -> bool:
    return client.may_use(response.model) and response.key in (None, client.flow)


def _unknown(param: str) -> RefusedError:
    message = "This response is not known here: it was not made through this gateway, or long ago."
    return RefusedError(Outcome.RESPONSE_NOT_FOUND, message, param)
