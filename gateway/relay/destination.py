"""The pool of a request: found by its model, waited for while endpoints have not answered yet."""

import contextlib

from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Pool
from gateway.relay.clients import Client
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.plane import Plane
from gateway.wire.shown import shown


async def find_pool(plane: Plane, exchange: Exchange, model: str | None, size: int) -> Pool:
    """Find the pool of the model that a request names, or the only pool, and note it in the exchange.

    Waits while endpoints have not said yet what they serve.

    Args:
        plane: of the gateway.
        exchange: of the request.
        model: as the client wrote it; None where it named none.
        size: of the body, bytes.

    Raises:
        RefusedError: there is no such pool, or the client may not use it.
    """
    directory = plane.directory
    pool = directory.lookup(model)
    if pool is None and directory.undiscovered():
        with contextlib.suppress(TimeoutError):
            timeout = plane.settings.admission.queue.no_endpoint_ttl
            pool = await plane.lobby.wait(exchange, size, lambda: directory.find(model), timeout)
    if pool is None:
        raise unknown_model(plane, model)
    permit(exchange.client, pool, model)
    exchange.model = pool.name
    return pool


def permit(client: Client, pool: Pool, model: str | None) -> None:
    """Refuse a model that its client may not use; `model` as it wrote it.

    Raises:
        RefusedError: it may not.
    """
    name = pool.name if model is None else model
    if not client.may_use(name):
        raise _missing(name)


def unknown_model(plane: Plane, model: str | None) -> RefusedError:
    """The refusal of a request that no pool serves; `model` as the client wrote it."""
    if plane.directory.undiscovered():
        message = "No endpoint that may serve this model could be reached yet."
        return RefusedError(Outcome.NO_ENDPOINT, message, retry_after=10.0)
    if model is None:
        return RefusedError(Outcome.INVALID_REQUEST, "`model` is required: several models are served.", "model")
    return _missing(model)


def _missing(model: str) -> RefusedError:
    message = f"The model `{shown(model)}` does not exist here, or not for your key. `/v1/models` lists those that do."
    return RefusedError(Outcome.MODEL_NOT_FOUND, message, "model")


async def wait_for_endpoint(plane: Plane, exchange: Exchange, pool: Pool, size: int) -> None:
    """Return when an endpoint of the pool takes traffic, or when the wait has timed out.

    Raises:
        RefusedError: the request may not wait.
    """
    if not pool.healthy():
        with contextlib.suppress(TimeoutError):
            timeout = plane.settings.admission.queue.no_endpoint_ttl
            await plane.lobby.wait(exchange, size, lambda: plane.directory.wait_for_endpoint(pool), timeout)
