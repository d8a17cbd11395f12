"""PURE. The reader of llama-server's answers: its slots as metrics, its models and properties as an identity.

It has no gauge of its KV cache. Each busy slot tells its prompt, the tokens it has generated and those it may still
generate; their sum is what the slot will hold at most. That is what kvgate's account holds for a request, too, as this
engine fails everything when it runs out. `n_prompt_tokens` grows with each token generated (b11549, seen): the
prompt's own length is what was processed of it and what came from the slot's cache.
"""

from typing import Annotated

import msgspec

from gateway.config.endpoint import Reached
from gateway.endpoints.exposition import EngineMetrics
from gateway.endpoints.identity import Identity, UnidentifiedError, check_names
from gateway.wire.engine_kinds import LLAMA_SERVER

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Next(msgspec.Struct):
    n_remain: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1
    """Tokens it may still generate; -1 for no limit of its own."""
    n_decoded: _Count = 0


class _Slot(msgspec.Struct):
    n_ctx: _Count = 0
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: _Count = 0
    n_prompt_tokens_processed: _Count = 0
    n_prompt_tokens_cache: _Count | None = None
    next_token: list[_Next] = []

    @property
    def held(self) -> int:
        """Most tokens that it will hold."""
        token = self.next_token[0] if self.next_token else _Next()
        if token.n_remain < 0:
            return self.n_ctx
        prompt = self.n_prompt_tokens
        if token.n_decoded and self.n_prompt_tokens_cache is not None:
            prompt = self.n_prompt_tokens_processed + self.n_prompt_tokens_cache
        return prompt + token.n_decoded + token.n_remain

    @property
    def generated(self) -> int:
        """Tokens it has generated."""
        return self.next_token[0].n_decoded if self.next_token else 0


class _Meta(msgspec.Struct):
    n_ctx: _Count | None = None


class _Card(msgspec.Struct):
    id: str
    aliases: list[str] = []
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Settings(msgspec.Struct):
    n_ctx: _Count | None = None


class _Properties(msgspec.Struct):
    total_slots: _Count | None = None
    default_generation_settings: _Settings | None = None
    build_info: str | None = None


_NOTHING = _Slot()
_slots = msgspec.json.Decoder(list[_Slot])
_models = msgspec.json.Decoder(_Models)
_properties = msgspec.json.Decoder(_Properties)


class SlotReader:
    """Reads `/slots` again and again, and adds up what it sees the slots do: the engine itself keeps no counters."""

    def __init__(self) -> None:
        self._seen: dict[int, _Slot] = {}
        """The busy slots of the last answer, by their task."""
        self._prompt = self._generated = 0

    def read(self, body: bytes, settings: Reached) -> EngineMetrics:
        """Read one answer. Tokens that a request has after the last look at it are not counted."""
        try:
            slots = _slots.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return EngineMetrics()
        busy = {slot.id_task: slot for slot in slots if slot.is_processing}
        for task, slot in busy.items():
            before = self._seen.get(task, _NOTHING)
            self._prompt += max(0, slot.n_prompt_tokens_processed - before.n_prompt_tokens_processed)
            self._generated += max(0, slot.generated - before.generated)
        self._seen = busy
        cells = settings.kv_tokens or max((slot.n_ctx for slot in slots), default=0)
        return EngineMetrics(
            kv_usage=min(1.0, sum(slot.held for slot in busy.values()) / cells) if cells else None,
            running=len(busy),
            waiting=None if busy else 0,  # what waits goes to a free slot at once
            generation_tokens=float(self._generated),
            prompt_tokens=float(self._prompt),
        )


def identify_llama_server(models: bytes, properties: bytes | None) -> Identity:
    """Read its identity.

    Raises:
        UnidentifiedError: it tells no model, or no length.
    """
    try:
        cards = _models.decode(models).data
        told = _properties.decode(properties) if properties is not None else _Properties()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnidentifiedError("llama-server's /v1/models or /props cannot be read") from error
    names = check_names([name for card in cards for name in (card.id, *card.aliases)])
    lengths = [card.meta.n_ctx for card in cards if card.meta is not None and card.meta.n_ctx]
    if told.default_generation_settings is not None and told.default_generation_settings.n_ctx:
        lengths.append(told.default_generation_settings.n_ctx)
    if not names or not lengths:
        raise UnidentifiedError("llama-server's /v1/models and /props tell no model with its context length")
    return Identity(
        names=names,
        loras=(),
        root=None,
        max_model_len=min(lengths),
        version=told.build_info,
        kind=LLAMA_SERVER.name,
        slots=told.total_slots or None,
        # It does not tell whether its slots share one cache: assumed is that they do, which is its default. Each slot
        # of a cache that is split has `n_ctx` of its own: then `kv_tokens` in the settings says what all have.
        kv_tokens=min(lengths),
    )
