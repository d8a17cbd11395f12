"""The recognition of an endpoint: which kind of engine it is, and its identity, by its own answers."""

from dataclasses import replace

from gateway.config.endpoint import Reached
from gateway.endpoints.identity import Identity, UnidentifiedError
from gateway.endpoints.probe import Prober
from gateway.endpoints.readers import READERS
from gateway.endpoints.replies import NoReply, Reply, unanswered
from gateway.wire.engine_kinds import KINDS, VLLM, EngineKind, owned_kind


async def find_kind(prober: Prober, settings: Reached, models: Reply | NoReply) -> EngineKind:
    """The kind of an engine: as configured, else by the owner of its models, else by its sign; vLLM's if nothing tells.

    Args:
        prober: asks it.
        settings: of the endpoint.
        models: its answer to `/v1/models`.

    Raises:
        UnidentifiedError: it is configured as another kind than it says.
        OutOfDescriptorsError: this process could not ask.
    """
    owned = owned_kind(models.body) if isinstance(models, Reply) and models.ok else None
    configured = settings.kind
    if configured is None:
        return owned or await _signed(prober) or VLLM
    if owned is not None and owned.name != configured:
        raise UnidentifiedError(f"it is configured as `kind: {configured}`, and says that it is {owned.name}")
    return KINDS[configured]


async def identify_as(
    kind: EngineKind, prober: Prober, settings: Reached, models: Reply | NoReply, known: dict[str, bytes]
) -> Identity:
    """The identity of an engine of this kind.

    Args:
        kind: as `find_kind` says.
        prober: asks it.
        settings: of the endpoint.
        models: its answer to `/v1/models`.
        known: its last answers by route, kept here: one holds where the route does not answer now, or tells less.

    Raises:
        UnidentifiedError: it does not tell its models, or no length, and none is configured.
        OutOfDescriptorsError: this process could not ask.
    """
    if isinstance(models, NoReply):
        raise UnidentifiedError(models.reason)
    if not models.ok:
        raise UnidentifiedError(f"GET /v1/models answered {models.status}")
    identity = READERS[kind.name].identity(models.body, await _about(kind, prober, known))
    if settings.max_model_len is not None:
        return replace(identity, max_model_len=settings.max_model_len)
    if not identity.max_model_len:
        raise UnidentifiedError(
            f"{kind.name} does not tell its length: give it in the settings, as "
            "`endpoints: [{url: ..., max_model_len: 8192}]`"
        )
    return identity


async def _signed(prober: Prober) -> EngineKind | None:
    for kind in KINDS.values():
        if kind.sign is not None:
            route, text = kind.sign
            reply = await prober.get(route)
            if isinstance(reply, Reply) and reply.ok and text.encode() in reply.body:
                return kind
    return None


async def _about(kind: EngineKind, prober: Prober, known: dict[str, bytes]) -> bytes | None:
    """What the first of its routes answers that it has."""
    for route in kind.about:
        reply = await prober.get(route)
        if isinstance(reply, Reply) and reply.ok:
            known[route] = READERS[kind.name].holding(known.get(route), reply.body)
        elif not unanswered(route, reply):
            known.pop(route, None)
        if route in known:
            return known[route]
    return None
