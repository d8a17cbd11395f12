"""The tokenizer as the renderer sees it, whoever loaded it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from gateway.tokens.messages import Json
from gateway.tokens.template import ChatTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Tokens(Protocol):
    """A text's tokens. The length is free; the ids are copied at each call."""

    @property
    def ids(self) -> Sequence[int]:
        """The ids."""

    def __len__(self) -> int:
        """The number of tokens."""


class Ids(msgspec.Struct, frozen=True):
    """Token ids at hand."""

    ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer(Protocol):
    """A loaded tokenizer."""

    longest: int
    """No token stands for more characters than this."""
    compiled: bool
    """Whether it encodes by compiled code alone."""
    special_tokens: tuple[str, ...]
    """Those that the model's files name as special; those with a name of their own, as `eos_token`, first."""

    @property
    def backend(self) -> "Backend | None":
        """The fast tokenizer, if encoding is nothing but a call of it in which special tokens of a text are found."""

    def encode(self, text: str, *, special: bool) -> Tokens:
        """The tokens of a text; with `special`, those that the tokenizer puts around one, too."""

    def template(self, given: str | None, *, tools: bool) -> str | None:
        """The chat template for requests with or without tools: a tokenizer may have one for each.

        Args:
            given: a template, or the name of one of the tokenizer's own; None for the one that it chooses.
            tools: whether the request has any.
        """

    def render(
        self, template: ChatTemplate, messages: list[Json], tools: list[Json] | None, variables: Mapping[str, Any]
    ) -> str:
        """The text of a conversation.

        Raises:
            jinja2.TemplateError: the template refuses it.
            Exception: as it fails otherwise.
        """


def backend_encoded(backend: "Backend", text: str, *, special: bool) -> Tokens:
    """A text's tokens without their offsets, which are not needed: a third faster than an ordinary call."""
    found: Tokens = backend.encode_batch_fast([text], add_special_tokens=special)[0]
    return found


def plain(backend: "Backend", *, split_special_tokens: bool) -> None:
    """Let a fast tokenizer encode texts whole, as they are."""
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = split_special_tokens
