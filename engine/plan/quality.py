"""PURE. The permissions to make something smaller that changes answers a little. Without one nothing is."""

from enum import StrEnum


class Quality(StrEnum):
    """What may be made smaller, which changes answers a little."""

    KV_CACHE = "kv-cache"
    WEIGHTS = "weights"
