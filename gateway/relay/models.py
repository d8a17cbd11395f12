"""`/v1/models`, answered from what the endpoints say."""

import time
from typing import Any

import msgspec

from gateway.admission.outcomes import Outcome
from gateway.pools import Pool
from gateway.relay.asgi import Scope
from gateway.relay.exchange import Exchange
from gateway.relay.plane import Plane
from gateway.wire.shown import shown

_STARTED = int(time.time())


async def list_models(plane: Plane, scope: Scope, exchange: Exchange) -> Outcome:
    """Answer the list, or the one model that the path names."""
    cards = [card for pool in plane.directory.pools.values() for card in _cards(pool)]
    name = scope["path"].removeprefix("/v1/models").removeprefix("/")
    answer: Any = {"object": "list", "data": cards}
    if name:
        answer = next((card for card in cards if card["id"] == name), None)
        if answer is None:
            message = f"The model `{shown(name)}` does not exist here. `/v1/models` lists those that do."
            return await exchange.refuse(Outcome.MODEL_NOT_FOUND, message, param="model")
    body = msgspec.json.encode(answer)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", exchange.identifier),
    ]
    exchange.status = 200
    exchange.committed = True
    await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": body})
    return Outcome.COMPLETED


def _cards(pool: Pool) -> list[dict[str, Any]]:
    loras = {lora for identity in pool.identities for lora in identity.loras}
    return [
        {
            "id": name,
            "object": "model",
            "created": _STARTED,
            "owned_by": "vllm",
            "root": pool.name,
            "parent": pool.name if name in loras else None,
            "max_model_len": pool.max_model_len,
        }
        for name in pool.names
    ]
