"""The fields of a body, decoded as its engines do, and a bound on how many values it may hold."""

import json
from typing import Any

import msgspec

from gateway.tokens.fields import OURS, reads_any_case
from gateway.tokens.messages import Json
from gateway.tokens.normalise import TokenIds
from gateway.wire.request import Api, InvalidRequestError

# Commas and brackets, weighted by memory: 6 million small values take some 400 MB, and no prompt that fits a model
# has as many. (Those inside texts count too, although they cost nothing.)
MOST_VALUES = 6_000_000
TOO_DEEP = "The request body is nested too deeply."

_SPLIT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_IDS = msgspec.json.Decoder(list[int])
_decode = json.JSONDecoder().raw_decode


def decoded(body: bytes, api: Api | None = None, kinds: frozenset[str] = OURS) -> Json:
    """Decode a body with the engine's parser: others read large numbers or odd strings differently.

    Args:
        body: its bytes.
        api: its own, if token ids may be decoded by a faster one.
        kinds: of the engines that may get it.
    """
    if len(body) > MOST_VALUES // 4 and values(body) > MOST_VALUES:
        raise InvalidRequestError("The request holds too many values: lists and objects of millions are not read.")
    try:
        made = _once if reads_any_case(kinds) else None
        fields = (_with_ids(body) if api is Api.COMPLETIONS else None) or json.loads(body, object_pairs_hook=made)
    except (ValueError, RecursionError):
        raise InvalidRequestError("The request body is not valid JSON.") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError("The request body must be a JSON object.")
    return fields


def _once(pairs: list[tuple[str, Any]]) -> Json:
    """An object for an engine that may read the first of two values with one name."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidRequestError("An object in the request has a name twice.")
    return made


def _with_ids(body: bytes) -> Json | None:
    """The fields of a completion whose prompt is token ids; None for any other."""
    try:
        fields = _SPLIT.decode(body)
        ids = _IDS.decode(fields.pop("prompt"))
        rest: Json = _decode(str(msgspec.json.encode(fields), "utf-8"))[0]
        return rest | {"prompt": TokenIds(ids)}
    except (KeyError, ValueError, RecursionError):
        return None


def values(body: bytes) -> int:
    """About the number of values in a body, objects and lists weighted by the memory that they take."""
    return body.count(b",") + 2 * body.count(b"[") + 4 * body.count(b"{")


def dear_values(api: Api, body: bytes) -> int:
    """About the number of values that take time to count: of a completion, not its token ids."""
    return body.count(b'"') // 2 + 2 * body.count(b"[") if api is Api.COMPLETIONS else values(body)
