"""The token ids of a prompt in a request's body: an engine that takes them does not tokenize the prompt again."""

from enum import StrEnum

from gateway.wire.request import appended


class IdsField(StrEnum):
    """The field of a chat request by which an engine takes token ids. `messages` stays beside it."""

    OWN = "prompt_token_ids"
    """As vLLM's pull request 55771 has it."""
    TRANSFER = "kv_transfer_params"
    """vLLM 0.29 and newer (pull request 48145). The engine takes it out again; it needs no KV connector."""

    def entry(self, ids: bytes) -> tuple[str, bytes]:
        """The field's name and value. `ids`: a JSON array."""
        return self, ids if self is IdsField.OWN else b'{"prompt_token_ids":%b}' % ids


def with_ids(body: bytes, field: IdsField, ids: bytes) -> bytes:
    """The body of a chat request with its prompt's token ids."""
    return appended(body, dict([field.entry(ids)]))


def without_ids(body: bytes, end: int) -> bytes:
    """The body that `with_ids` was given; `end`: where its object ended."""
    return b"".join((memoryview(body)[:end], b"}"))
