"""The hand-over of token ids: which endpoints take those of a counted prompt, and need not tokenize it again."""

from collections.abc import Callable, Sequence

import msgspec

from gateway.tokens.count import CountUnavailableError
from gateway.tokens.engine_count import EngineCounter, RouteMissingError, Target
from gateway.tokens.messages import Json
from gateway.wire.request import InvalidRequestError
from gateway.wire.token_ids import IdsField, with_ids

AUDITED = 0.01
"""Share of prompts that go without ids, so that the engine tokenizes them. Of prompts that could go with ids,
only their `usage` shows drift. That of the others says how many ids the engine was given."""
PROBED: Json = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
"""The request whose token ids are sent as a probe."""
_PATIENCE = 60.0
"""Seconds: the first step of a cold engine takes long."""


class HandOver:
    """The endpoints of one model that take token ids.

    Args:
        model: its served name.
        engine: asks them.
        on_refusal: called with the reason when one takes them no more.
        chance: a number from 0 to 1, drawn for each prompt.
    """

    def __init__(
        self, model: str, engine: EngineCounter, on_refusal: Callable[[str], None], chance: Callable[[], float]
    ) -> None:
        self._model = model
        self._engine = engine
        self._on_refusal = on_refusal
        self._chance = chance
        self._fields: dict[str, IdsField] = {}

    async def probe(self, target: Target, ids: Sequence[int]) -> bool:
        """Find out what an endpoint takes; False if it did not answer. It generates one token for each field tried.

        Args:
            target: the endpoint.
            ids: those of `PROBED`. They are sent twice over: an engine that takes no ids counts them once.
        """
        body, twice = msgspec.json.encode({"model": self._model} | PROBED), msgspec.json.encode([*ids, *ids])
        answered = True
        for field in IdsField:
            try:
                used = await self._engine.used(target, with_ids(body, field, twice), _PATIENCE)
            except (InvalidRequestError, RouteMissingError):
                continue
            except CountUnavailableError:
                answered = False
                continue
            if used == 2 * len(ids):
                self._fields[target.url] = field
                return True
        return answered

    def forget(self, url: str) -> None:
        """Send an endpoint no ids until it was probed again: another engine may answer there by now."""
        self._fields.pop(url, None)

    def field(self, url: str) -> IdsField | None:
        """The field by which an endpoint takes token ids; None if it takes none."""
        return self._fields.get(url)

    def drawn(self, url: str) -> IdsField | None:
        """The field for one prompt; None if the endpoint takes no ids, or the prompt was drawn for the audit."""
        field = self._fields.get(url)
        return None if field is None or self._chance() < AUDITED else field

    def settle(self, url: str, sent: int, reported: int) -> None:
        """Compare the number of ids sent with the engine's `usage.prompt_tokens`. Unequal: none until probed again."""
        if sent != reported and self._fields.pop(url, None) is not None:
            self._on_refusal(f"{url} was given {sent} token ids, and reported a prompt of {reported} tokens")
