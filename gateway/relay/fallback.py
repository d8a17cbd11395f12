"""The choice of another model for a request that its own cannot serve in time or in length.

Its operator has configured the fallbacks of the model, and its client says in a header that another may answer. The
first fallback that takes it does. A fallback's own fallbacks are not asked. If none takes it, it ends as it would have
without them, with the time to come back that its own model told.
"""

from collections.abc import Sequence
from copy import copy

from msgspec import structs

from gateway.admission.outcomes import BEYOND_ITS_MODEL, Outcome
from gateway.config.fallback import FallbackSettings
from gateway.pools.directory import Pool, is_for
from gateway.relay.attempts import generate
from gateway.relay.client_identity import Client
from gateway.relay.demand import Asked, parsed, ttft_target
from gateway.relay.destination import find_pool
from gateway.relay.editing import renamed_for
from gateway.relay.exchange import Exchange, Fallback, RefusedError
from gateway.relay.fallback_server import answer_elsewhere
from gateway.relay.headers import FALLBACK_HEADER
from gateway.relay.payload import Payload
from gateway.relay.plane import Plane
from gateway.relay.prepare import prepare
from gateway.relay.stored import refuse_others
from gateway.server.asgi import Scope, header
from gateway.wire.request import Api
from gateway.wire.shown import shown

_ALLOW = b"allow"


async def serve(plane: Plane, scope: Scope, exchange: Exchange, client: Client, payload: Payload) -> Outcome:
    """Serve one request of a generation API; returns how it ended.

    Raises:
        RefusedError: it ends with an error.
        asyncio.CancelledError: the client left. The endpoint's connection is closed, the reservation released.
    """
    request = await parsed(plane.counting, client.flow, exchange.api or Api.CHAT, payload.data)
    request = structs.replace(request, body=b"")  # from here on only the payload has the bytes
    exchange.stream = request.stream
    asked = Asked(scope, exchange, client, payload, request, ttft_target(scope))
    refuse_others(plane, asked)
    fallbacks = _allowed(plane, asked)
    own = plane.directory.lookup(request.model)
    if fallbacks and not (own and own.healthy()):  # it need not wait for an endpoint
        exchange.model = request.model if own is None else own.name
        outcome = await _by_another(plane, asked, fallbacks, own, Outcome.NO_ENDPOINT)
        if outcome is not None:
            return outcome
        fallbacks = ()
    try:
        own = await find_pool(plane, exchange, request.model, len(payload.data))
        return await generate(plane, asked, await prepare(plane, asked, own))
    except RefusedError as refused:
        if not fallbacks or refused.outcome not in BEYOND_ITS_MODEL:
            raise
        first = refused.afresh()
    outcome = await _by_another(plane, asked, fallbacks, own, first.outcome)
    if outcome is None:
        raise first
    return outcome


def _allowed(plane: Plane, asked: Asked) -> Sequence[FallbackSettings]:
    """The fallbacks that operator and client both allow.

    Raises:
        RefusedError: the header has another value.
    """
    wish = header(asked.scope, FALLBACK_HEADER)
    if wish is None:
        return ()
    name = FALLBACK_HEADER.decode()
    if wish.lower() != _ALLOW:
        message = f"The header `{name}` must be `allow`, got {shown(wish.decode('latin-1'))!r}."
        raise RefusedError(Outcome.INVALID_REQUEST, message, name)
    model = asked.request.model
    pool = plane.directory.lookup(model)
    if pool is not None:
        configured = [endpoint.settings for endpoint in pool.endpoints.values()]
        model = pool.name if model is None else model
    else:
        configured = [settings for settings in plane.settings.models if model is not None and is_for(settings, model)]
    may_use = asked.client.may_use
    if model is None or not may_use(model):
        return ()
    fallbacks = dict.fromkeys(fallback for settings in configured for fallback in settings.fallbacks)
    allowed = [fallback for fallback in fallbacks if may_use(fallback.model or model)]
    return allowed if allowed and asked.payload.keep_given() else ()


async def _by_another(
    plane: Plane, asked: Asked, fallbacks: Sequence[FallbackSettings], own: Pool | None, reason: Outcome
) -> Outcome | None:
    """Have it served by the first fallback that takes it; None if none does.

    Each gets the body as the client sent it, but for the model's name.
    """
    exchange, payload = asked.exchange, asked.payload
    before = copy(exchange)
    for fallback in fallbacks:
        server = plane.elsewhere.get(fallback)
        pool = None if fallback.model is None else plane.directory.lookup(fallback.model)
        if server is None and (pool is None or pool is own or not pool.healthy()):
            continue
        exchange.count = exchange.demand = exchange.max_tokens = exchange.endpoint = None
        exchange.lacking = frozenset()
        model = fallback.model or asked.request.model
        tried = structs.replace(asked, request=structs.replace(asked.request, model=model))
        try:
            if fallback.model is None:
                payload.replace(payload.given)
            else:
                payload.replace(await renamed_for(plane, asked.client, payload.given, fallback.model))
            if server is not None:
                exchange.fallback = Fallback(server.id, None, reason)
                charging = own or next(iter(plane.directory.pools.values()), None)
                return await answer_elsewhere(plane, tried, server, charging)
            if pool is not None:
                exchange.fallback = Fallback(fallback.model or pool.name, pool.name, reason)
                return await generate(plane, tried, await prepare(plane, tried, pool))
        except RefusedError:
            continue  # the client is told what its own model said
    payload.replace(payload.given)
    exchange.count, exchange.demand, exchange.max_tokens = before.count, before.demand, before.max_tokens
    exchange.endpoint, exchange.standing, exchange.fallback = before.endpoint, before.standing, None
    return None
