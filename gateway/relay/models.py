"""The answer to `/v1/models`: from what endpoints say, or from the settings while one has not said it."""

import time
from typing import Any

import msgspec

from gateway.admission.outcomes import Outcome
from gateway.pools.directory import Pool
from gateway.relay.destination import unknown_model
from gateway.relay.exchange import Exchange, RefusedError
from gateway.relay.plane import Plane
from gateway.server.asgi import Scope

_STARTED = int(time.time())


async def list_models(plane: Plane, scope: Scope, exchange: Exchange) -> Outcome:
    """Answer with the list, or with the one model that the path names.

    Raises:
        RefusedError: it is not known yet what is served, or there is no such model.
    """
    directory = plane.directory
    told = ((pool, card) for pool in directory.pools.values() for card in _cards(pool))
    cards = [card for pool, card in told if directory.lookup(card["id"]) is pool]  # two may tell of one name
    cards += [_card(name, name) for name in directory.awaited]
    every = cards
    cards = [card for card in cards if exchange.client.may_use(card["id"])]
    if not every:
        raise RefusedError(Outcome.NO_ENDPOINT, "No endpoint has said yet which models it serves.", retry_after=10.0)
    name = scope["path"].removeprefix("/v1/models").removeprefix("/")
    answer: Any = {"object": "list", "data": cards}
    if name:
        answer = next((card for card in cards if card["id"] == name), None)
        if answer is None:
            raise unknown_model(plane, name)
    body = msgspec.json.encode(answer)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", exchange.identifier),
    ]
    await exchange.response.begin(200, headers)
    await exchange.response.end(body)
    return Outcome.COMPLETED


def _cards(pool: Pool) -> list[dict[str, Any]]:
    loras = {lora for identity in pool.identities for lora in identity.loras}
    longest = pool.max_model_len
    return [
        _card(name, pool.name, parent=pool.name if name in loras else None, max_model_len=longest)
        for name in pool.names
    ]


def _card(name: str, root: str, *, parent: str | None = None, max_model_len: int | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
    }
