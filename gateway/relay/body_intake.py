"""The reader of client bodies: enforces the limits, and has an answer for each way a body can go wrong."""

from codecs import BOM_UTF8

from gateway.admission.outcomes import Outcome
from gateway.config.settings import ServerSettings
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.payload import Allowance, BodyTimeoutError, BodyTooLargeError, NoRoomError, Payload, read_body
from gateway.server.asgi import Receive, Scope


async def read_within_limits(settings: ServerSettings, payload: Payload, scope: Scope, receive: Receive) -> None:
    """Read the body into its payload, without the byte order mark that some editors put before JSON, and engines skip.

    Raises:
        RefusedError: the body is over a limit.
        ClientGoneError: the client left before its body ended.
    """
    try:
        body = await read_body(
            scope,
            receive,
            limit=settings.max_body_bytes,
            allowance=Allowance(settings.body_timeout, settings.body_min_rate),
            grown=payload.grown,
        )
        payload.data = body.removeprefix(BOM_UTF8)
    except BodyTooLargeError as error:
        message = f"The request body has {error.size} bytes or more; at most {settings.max_body_bytes} are accepted."
        raise RefusedError(Outcome.BODY_TOO_LARGE, message) from None
    except NoRoomError:
        message = "Too many large bodies are here already. Please retry."
        raise RefusedError(Outcome.GATEWAY_FULL, message, retry_after=1.0) from None
    except BodyTimeoutError:
        message = (
            f"The request body did not arrive: nothing came for {settings.body_timeout:g} s, or less than "
            f"{settings.body_min_rate} bytes a second."
        )
        raise RefusedError(Outcome.INVALID_REQUEST, message) from None


async def read_request(
    settings: ServerSettings, payload: Payload, scope: Scope, receive: Receive, exchange: Exchange
) -> Outcome | None:
    """Read the body into its payload; return the outcome if that ended the request.

    Raises:
        ClientGoneError: the client left before its body ended.
    """
    try:
        await read_within_limits(settings, payload, scope, receive)
    except RefusedError as refused:
        late = refused.outcome is Outcome.INVALID_REQUEST  # then no more of the body is awaited
        return await exchange.refuse(
            refused.outcome,
            refused.message,
            retry_after=refused.retry_after,
            close=late,
            unread=None if late else receive,
        )
    return None
