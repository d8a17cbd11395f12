"""Whose the responses are that an engine has stored: it gives each to everybody who knows its id."""

from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Made
from gateway.relay.client_identity import Client
from gateway.relay.exchange import RefusedError
from gateway.relay.plane import Plane
from gateway.relay.understand import Asked


def stored(plane: Plane, client: Client, response_id: str) -> Made:
    """Find where a response was made.

    Raises:
        RefusedError: it is not known here, or not its client's.
    """
    made = plane.directory.made_response(response_id)
    if made is None or not _owns(client, made):
        raise _unknown("response_id")
    return made


def refuse_others(plane: Plane, asked: Asked) -> None:
    """Refuse a request that may go on with the response of another key, or take its id.

    Raises:
        RefusedError: it may. A response that is not known here may be anybody's.
    """
    request, client = asked.request, asked.client
    if not client.keyed:
        return
    if request.previous_response_id is not None:
        made = plane.directory.made_response(request.previous_response_id)
        if made is None or not _owns(client, made):
            raise _unknown("previous_response_id")
    if request.response_id is not None:
        message = "`request_id` cannot be set by a client with a key: the response of another key may have this id."
        raise RefusedError(Outcome.FORBIDDEN_FIELD, message, "request_id")


def _owns(client: Client, made: Made) -> bool:
    return client.may_use(made.model) and made.key in (None, client.flow)


def _unknown(param: str) -> RefusedError:
    message = "This response is not known here: it was not made through this gateway, or long ago."
    return RefusedError(Outcome.RESPONSE_NOT_FOUND, message, param)
