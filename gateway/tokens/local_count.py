"""The exact count with the tokenizer of the model: the pool runs it in a thread or in another process."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from gateway.admission.events import Prefix
from gateway.tokens.body_fields import decoded
from gateway.tokens.count import Counted
from gateway.tokens.features import Feature, Kind
from gateway.tokens.fields import OURS, as_read
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.normalise import (
    ChatPrompt,
    TextPrompt,
)
from gateway.tokens.pool import QUICK
from gateway.tokens.prefix import prefix_of
from gateway.tokens.prompts import prompts_of
from gateway.tokens.render import MeasuredPrompt, TokenizerSource, renderer
from gateway.wire.fields import Use, named
from gateway.wire.request import Api

_APART = ("model", *named(Use.APART), *named(Use.ADAPTER))
"""The fields in which prompts differ that share no prefix."""


def load(source: TokenizerSource) -> str | None:
    """Load a tokenizer, so that the first count does not wait for it. Returns `QUICK` if it need not have waited long.

    Raises:
        TokenizerUnavailableError: as `gateway.tokens.render.renderer`.
    """
    return QUICK if renderer(source).light else None


def count_body(
    source: TokenizerSource,
    api: Api,
    body: bytes,
    max_model_len: int,
    distrusted: frozenset[Feature] = frozenset(),
    *,
    kinds: frozenset[str] = OURS,
    excludes_unused: bool = False,
    key: bytes | None = None,
    ids_from: int | None = None,
    files: bytes | None = None,
) -> Counted:
    """Count with the tokenizer of the model.

    Args:
        source: the tokenizer.
        api: of the request.
        body: its bytes.
        max_model_len: in tokens; what cannot fit is not encoded.
        distrusted: features that this model's engine is known to treat differently.
        kinds: of the engines that may get it.
        excludes_unused: whether the engine leaves out tools that the model may not use.
        key: for the hashes of the prompt's leading parts; None if they are not needed.
        ids_from: tokens from which on the ids of a single prompt are returned, too, if the engine needs no more than
            these; None for never.
        files: as for `gateway.tokens.render.renderer`.

    Raises:
        NeedsEngineError, NotCountableError: it cannot be counted here.
        InvalidRequestError: the engine would refuse it while building the prompt.
        PromptTooLongError: it cannot fit.
        TokenizerUnavailableError: as `gateway.tokens.render.renderer`.
    """
    fields = as_read(api, decoded(body, api, kinds), kinds)
    prompts, brought = prompts_of(api, fields, excludes_unused=excludes_unused)
    if brought & distrusted:
        raise NeedsEngineError(f"the engine differs in {min(brought & distrusted)}")
    alone = len(prompts) == 1
    measured = [one for prompt in prompts for one in _measured(source, files, prompt, max_model_len, alone=alone)]
    tokens, kind = tuple([one.tokens for one in measured]), Kind(api, brought)
    if len(measured) != 1 or measured[0].encoded is None:
        return Counted(tokens, kind)
    ids = measured[0].encoded.ids
    prefix: Prefix = ()
    if key is not None and not _skips_cache(fields):
        # A LoRA is chosen by its name. Two names of the base model count as two models that share nothing.
        seed = repr([fields.get(name) for name in _APART])
        prefix = prefix_of(ids, key, seed)
    # Of a prompt that came as ids, the engine has no text to return.
    wanted = ids_from is not None and len(ids) >= ids_from and not fields.get("return_prompt_text")
    return Counted(tokens, kind, prefix, msgspec.json.encode(list(ids)) if wanted else b"")


def _measured(
    source: TokenizerSource,
    files: bytes | None,
    prompt: ChatPrompt | TextPrompt,
    max_model_len: int,
    *,
    alone: bool,
) -> Sequence[MeasuredPrompt]:
    if isinstance(prompt, TextPrompt):
        return renderer(source, files).measure_texts(prompt, max_model_len)
    one = renderer(source, files).measure_chat(prompt, max_model_len)
    return [one if alone else structs.replace(one, encoded=None)]  # the tokens of all conversations would be large


def _skips_cache(fields: Mapping[str, Any]) -> bool:
    """Whether the engine computes the whole prompt and skips its cache: it asks for the prompt's own logprobs."""
    return bool(
        fields.get("echo")
        or fields.get("prompt_logprobs") is not None
        or fields.get("prompt_logprob_token_ids") is not None
    )
