"""Reading a client's body within the limits, with an answer for each way that can go wrong."""

from gateway.admission.outcomes import Outcome
from gateway.config import ServerSettings
from gateway.relay.asgi import BodyTimeoutError, BodyTooLargeError, NoRoomError, Receive, Room, Scope, read_body
from gateway.relay.exchange import Exchange

NO_ROOM = "Too many large bodies are being sent at once. Please retry."


async def read_request(
    settings: ServerSettings, room: Room, scope: Scope, receive: Receive, exchange: Exchange
) -> bytes | Outcome:
    """The body, or how the request has ended.

    Raises:
        ClientGoneError: the client left before its body ended.
    """
    try:
        return await read_body(
            scope,
            receive,
            limit=settings.max_body_bytes,
            timeout=settings.body_timeout,
            rate=settings.body_min_rate,
            room=room,
        )
    except BodyTooLargeError as error:
        message = f"The request body has {error.size} bytes or more; at most {settings.max_body_bytes} are accepted."
        return await exchange.refuse(Outcome.BODY_TOO_LARGE, message, unread=receive)
    except NoRoomError:
        return await exchange.refuse(Outcome.GATEWAY_FULL, NO_ROOM, retry_after=1.0, unread=receive)
    except BodyTimeoutError:
        message = (
            f"The request body did not arrive: nothing came for {settings.body_timeout:g} s, or less than "
            f"{settings.body_min_rate} bytes a second."
        )
        return await exchange.refuse(Outcome.INVALID_REQUEST, message, close=True)
