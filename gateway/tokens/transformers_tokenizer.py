"""A model's tokenizer as transformers loads it: for all that `fast_tokenizer.py` does not load."""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.tokens.messages import Json
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Ids, Tokens, backend_encoded, plain

# transformers itself is imported at first use: that takes more than a second, and few models need it.
if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerBase

_IMPORTING = threading.Lock()
"""Two threads that both import transformers for the first time: one fails ("cannot import name")."""


class TransformersTokenizer:
    """Implements `gateway.tokens.tokenizer.Tokenizer`."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._backend = _backend(tokenizer)
        self.compiled = self._backend is not None
        self.longest: int = max(map(len, tokenizer.get_vocab()))
        self.special_tokens: tuple[str, ...] = tuple(tokenizer.all_special_tokens)
        self.backend = None if tokenizer.split_special_tokens else self._backend

    def encode(self, text: str, *, special: bool) -> Tokens:
        """See `Tokenizer.encode`."""
        if self._backend is not None:
            return backend_encoded(self._backend, text, special=special)
        return Ids(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def template(self, given: str | None, *, tools: bool) -> str | None:
        """See `Tokenizer.template`."""
        try:
            source: str = self._tokenizer.get_chat_template(given, [] if tools else None)
        except ValueError:
            return None
        return source

    def render(
        self, template: ChatTemplate, messages: list[Json], tools: list[Json] | None, variables: Mapping[str, Any]
    ) -> str:
        """See `Tokenizer.render`. A class may have its own way to do this."""
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=template.source, tokenize=False, **variables
            )
        )


def load(name: str, *, trust_remote_code: bool, offline: bool) -> TransformersTokenizer:
    """Load a tokenizer by its folder or hub id. Raises whatever its loading raises.

    `offline`: whether only cached files of a hub are to be used.
    """
    # No warning that PyTorch was not found: it is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _IMPORTING:
        from transformers import AutoTokenizer, TokenizersBackend  # noqa: F401, PLC0415
    # The engine truncates prompts for generation on the left, so it loads the tokenizer that way.
    return TransformersTokenizer(
        AutoTokenizer.from_pretrained(
            name, trust_remote_code=trust_remote_code, truncation_side="left", local_files_only=offline
        )
    )


def _backend(tokenizer: "PreTrainedTokenizerBase") -> "Backend | None":
    """The tokenizer without its Python shell, if that only hands texts on."""
    from transformers import TokenizersBackend  # noqa: PLC0415

    kind = type(tokenizer)
    hands_on = (
        isinstance(tokenizer, TokenizersBackend)
        and kind.__call__ is TokenizersBackend.__call__
        and kind._encode_plus is TokenizersBackend._encode_plus  # noqa: SLF001  # only to see that it is not overridden
    )
    if not hands_on:
        return None
    backend: Backend = tokenizer.backend_tokenizer
    plain(backend, split_special_tokens=tokenizer.split_special_tokens)
    return backend
