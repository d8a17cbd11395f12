"""The length check of a request against its model, and the demand that follows from it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.admission.events import Demand
from gateway.tokens.count import PromptCount
from gateway.wire.request import Api, GenerationRequest
from gateway.wire.shown import shown

_PROMPT_PARAM = dict.fromkeys(Api, "messages") | {Api.COMPLETIONS: "prompt", Api.RESPONSES: "input"}


class TooLongError(Exception):
    """The request cannot fit. `message` has both numbers; `param` is the field to shorten or lower."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def untokenized(at_least: int, max_model_len: int, api: Api) -> TooLongError:
    """The refusal of a prompt whose character count alone shows that it is too long."""
    return _too_long(f"at least {at_least}", max_model_len, api)


def demand(
    request: GenerationRequest, count: PromptCount, max_model_len: int, takes: Callable[[int, int], bool]
) -> Demand:
    """The request's demand, in tokens.

    Args:
        request: as the client sent it.
        count: the tokens of its prompts.
        max_model_len: of the largest endpoint.
        takes: whether some endpoint takes a prompt and an output limit of so many tokens.

    Raises:
        TooLongError: no endpoint could take it. Never for an estimate or a bound: then the engine decides.
    """
    longest = max(count.prompts)
    asked = request.max_tokens
    if count.source.exact:
        if longest >= max_model_len:
            raise _too_long(str(longest), max_model_len, request.api)
        if asked is not None and not takes(longest, asked):
            field = request.max_tokens_field
            raise TooLongError(
                f"This model's maximum context length is {max_model_len} tokens. However, you requested {shown(asked)} "
                f"output tokens and your prompt has {longest} tokens, {shown(longest + asked)} in all. "
                f"Please lower `{field}` or shorten the prompt.",
                field,
            )
    prompts = tuple(min(tokens, max_model_len - 1) for tokens in count.prompts)
    unlimited = Demand(prompts, _room(prompts, max_model_len), request.n)
    return unlimited if asked is None else limited(unlimited, asked, max_model_len)


def limited(demand: Demand, most: int, max_model_len: int) -> Demand:
    """The demand with an output limit that its engine gets, in tokens. `max_model_len`: of the largest endpoint.

    An answer that no endpoint has room for is cut everywhere: wherever the limit alone is not refused it may be.
    """
    lengths = (demand.longest_prompt + most, most, 0)
    least_length = next(length for length in lengths if length <= max_model_len)
    return replace(demand, max_tokens=min(most, _room(demand.prompts, max_model_len)), least_length=least_length)


def _room(prompts: Sequence[int], max_model_len: int) -> int:
    """Most tokens that any sequence may get: of several prompts, each has what its own length leaves."""
    return max_model_len - min(prompts)


def _too_long(tokens: str, max_model_len: int, api: Api) -> TooLongError:
    return TooLongError(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt has {tokens} tokens, "
        "which leaves no room for an answer. Please shorten the prompt.",
        _PROMPT_PARAM[api],
    )
