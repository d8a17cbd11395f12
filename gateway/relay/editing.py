"""The edits of a body, off the event loop where they take long."""

from gateway.relay.body_parsing import read_apart, read_here
from gateway.relay.client_identity import Client
from gateway.relay.plane import Plane
from gateway.wire.request import (
    EDITED_INLINE_BYTES,
    Api,
    Edits,
    GenerationRequest,
    edited,
    refuse_other_case,
    renamed,
    rewrites,
)


def asks_usage(request: GenerationRequest) -> bool:
    """Whether kvgate asks for usage that the client did not ask for."""
    return request.stream and not request.include_usage and request.api in {Api.CHAT, Api.COMPLETIONS}


async def edited_for(plane: Plane, client: Client, body: bytes, request: GenerationRequest, edits: Edits) -> bytes:
    """The body that an endpoint gets in the place of the client's. Raises as `read`."""
    if len(body) > EDITED_INLINE_BYTES and rewrites(request, edits):
        return await read_apart(plane.counting, client.flow, edited, body, request, edits)
    return read_here(edited, body, request, edits)


async def check_names(plane: Plane, flow: str, body: bytes) -> None:
    """Refuse fields that a server reads in any case of letters as others (`refuse_other_case`). Raises as `read`."""
    if len(body) > EDITED_INLINE_BYTES:
        await read_apart(plane.counting, flow, refuse_other_case, body)
    else:
        read_here(refuse_other_case, body)


async def renamed_for(plane: Plane, client: Client, body: bytes, model: str) -> bytes:
    """The body of a request to another model. Raises as `read`."""
    if len(body) > EDITED_INLINE_BYTES:
        return await read_apart(plane.counting, client.flow, renamed, body, model)
    return read_here(renamed, body, model)
