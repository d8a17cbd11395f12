"""The length check of a request against its model, and the demand that follows from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from gateway.admission.events import Demand
from gateway.tokens.count import PromptCount
from gateway.wire.request import Api, GenerationRequest
from gateway.wire.shown import shown

_PROMPT_PARAM = dict.fromkeys(Api, "messages") | {Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}


class Lengths(Protocol):
    """The lengths of a pool's endpoints; see `gateway.pools.directory.Pool`."""

    max_model_len: int

    def takes(self, prompt: int, limit: int) -> bool:
        """Whether an endpoint takes a prompt and an output limit of so many tokens."""
        ...

    def least_length(self, prompt: int, limit: int) -> int:
        """The length below which an endpoint refuses them."""
        ...


class TooLongError(Exception):
    """The request cannot fit. `message` has both numbers; `param` is the field to shorten or lower."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def untokenized(at_least: int, max_model_len: int, api: Api) -> TooLongError:
    """The refusal of a prompt whose character count alone shows that it is too long."""
    return _too_long(f"at least {at_least}", max_model_len, api)


def demand(request: GenerationRequest, count: PromptCount, pool: Lengths) -> Demand:
    """The request's demand, in tokens.

    Args:
        request: as the client sent it.
        count: the tokens of its prompts.
        pool: of the model.

    Raises:
        TooLongError: no endpoint could take it. Never for an estimate or a bound: then the engine decides.
    """
    longest, max_model_len = max(count.prompts), pool.max_model_len
    asked = request.max_tokens
    if count.source.exact:
        if longest >= max_model_len:
            raise _too_long(str(longest), max_model_len, request.api)
        if asked is not None and not pool.takes(longest, asked):
            field = request.max_tokens_field
            raise TooLongError(
                f"This model's maximum context length is {max_model_len} tokens. However, you requested {shown(asked)} "
                f"output tokens and your prompt has {longest} tokens, {shown(longest + asked)} in all. "
                f"Please lower `{field}` or shorten the prompt.",
                field,
            )
    prompts = tuple(min(tokens, max_model_len - 1) for tokens in count.prompts)
    unlimited = Demand(prompts, _room(prompts, max_model_len), request.n)
    return unlimited if asked is None else limited(unlimited, asked, pool)


def limited(demand: Demand, most: int, pool: Lengths) -> Demand:
    """The demand with an output limit that its engine gets, in tokens.

    Clients that ask for more than any endpoint has need not all go to the longest: it cuts their answers, too.
    """
    longest, max_model_len = demand.longest_prompt, pool.max_model_len
    least, whole = pool.least_length(longest, most), longest + most
    return replace(
        demand,
        max_tokens=min(most, _room(demand.prompts, max_model_len)),
        least_length=least if least <= max_model_len else 0,
        whole_length=whole if whole <= max_model_len else 0,
    )


def _room(prompts: Sequence[int], max_model_len: int) -> int:
    """Most tokens that any sequence may get: of several prompts, each has what its own length leaves."""
    return max_model_len - min(prompts)


def _too_long(tokens: str, max_model_len: int, api: Api) -> TooLongError:
    return TooLongError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt has {tokens} tokens, "
        "which leaves no room for an answer. Please shorten the prompt.",
        _PROMPT_PARAM[api],
    )
