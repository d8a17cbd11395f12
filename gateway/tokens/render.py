"""The renderer of one model: renders and encodes as the engine does, with the model's tokenizer and template."""

import contextlib
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from gateway.runtime.descriptors import lacking
from gateway.tokens.count import PromptTooLongError
from gateway.tokens.encoding_time import encoding_seconds
from gateway.tokens.fast_tokenizer import FastTokenizer, UnlikeError
from gateway.tokens.hub import digest, fetched, hub_answers, missed
from gateway.tokens.interruption import look, whole
from gateway.tokens.message_shape import conversation, fold_developer
from gateway.tokens.messages import Json, NeedsEngineError
from gateway.tokens.normalise import ChatPrompt, Encoding, TextPrompt
from gateway.tokens.pieces import PIECE, Pieces, safe_cuts
from gateway.tokens.rendered_text import OutputTooLongError, bounded
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Ids, Tokenizer, Tokens
from gateway.tokens.transformers_tokenizer import load
from gateway.wire.request import InvalidRequestError


class TokenizerSource(msgspec.Struct, frozen=True):
    """The source of a tokenizer; equal sources share one tokenizer in each process."""

    name: str
    """Folder or hub id."""
    trust_remote_code: bool = False
    chat_template: str | None = None
    """A template to use instead of the tokenizer's own, as `--chat-template` makes the engine do."""


class MeasuredPrompt(msgspec.Struct, frozen=True):
    """A prompt's length, and its tokens."""

    tokens: int
    encoded: Tokens | None
    """None if truncation changes the tokens, and for one of several prompts."""


class TokenizerUnavailableError(Exception):
    """The tokenizer cannot be loaded here, or would not count as the engine does; the message says why.

    Attributes:
        passes: the reason is temporary: the next try may succeed.
    """

    def __init__(self, message: str, *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes


class TokenizerChangedError(NeedsEngineError):
    """The files of a tokenizer are not those any more that the gateway loaded, or cannot be loaded any more."""


# Models whose prompts the engine builds without a chat template (vllm 0.32, config/model.py and renderers/registry.py),
# or whose tokenizer it loads as another class than their repository names (tokenizers/registry.py).
_ENCODERS_OF_THEIR_OWN = frozenset(
    {
        "MoonshotKimiaForCausalLM", "KimiK3ForConditionalGeneration", "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM",
        "InklingForCausalLM", "InklingForConditionalGeneration",
    }
)  # fmt: skip
_TYPES_OF_THEIR_OWN = frozenset({"gpt_oss", "internlm2", "step3_vl", "step3p7", "unlimited-ocr", "unlimited_ocr"})

# Twice the characters of an ordinary token: a part this long shows whether such a text can fit.
_CHARS_PER_TOKEN = 8

_CHARS_OF_A_TOKEN = 4
"""Characters of an ordinary token."""

_ESTIMATED_FROM = 2**17
"""Characters."""

_LONGEST_REFUSAL = 4096
"""Characters of what a template says when it refuses a conversation: it may quote that, and a role of any length."""

_MOST_INDENTED = 2**21
"""Most values of a prompt that a template may print indented, each times its depth: some 16 MB of blanks."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Renderer:
    """The tokenizer and templates of one model.

    Raises:
        jinja2.TemplateSyntaxError: a template is none.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None = None, files: bytes = b"") -> None:
        self._tokenizer = tokenizer
        self.files = files
        """A digest of the files that it was loaded from."""
        self.light = isinstance(tokenizer, FastTokenizer)
        """Whether it is loaded in a fraction of a second."""
        self.quick = tokenizer.compiled
        """Whether it encodes by compiled code."""
        self.max_chars_per_token = tokenizer.longest
        """No token stands for more characters than this."""
        sources = [tokenizer.template(chat_template, tools=tools) for tools in (False, True)]
        templates: dict[str | None, ChatTemplate] = {it: ChatTemplate(it) for it in sources if it is not None}
        self._plain, self._with_tools = (templates.get(source) for source in sources)
        for template in templates.values():
            _compile(tokenizer, template)
        self._strips = _strips(tokenizer)
        self._pieces = _pieces(tokenizer, [template.source for template in templates.values()])

    def measure_chat(self, prompt: ChatPrompt, max_model_len: int) -> MeasuredPrompt:
        """Encode a conversation.

        Raises:
            NeedsEngineError: there is no template, or it fails and the engine should word the error.
            InvalidRequestError: the template rejects the conversation.
            PromptTooLongError: it cannot fit.
        """
        try:
            text = self.render(prompt, max_model_len * self.max_chars_per_token)
        except OutputTooLongError as error:
            return _over(math.ceil(error.characters / self.max_chars_per_token), prompt.encoding, max_model_len)
        return self._measure(text, prompt.encoding, max_model_len)

    def measure_texts(self, prompt: TextPrompt, max_model_len: int) -> tuple[MeasuredPrompt, ...]:
        """Encode each prompt of a completions request.

        Raises:
            PromptTooLongError: one of them cannot fit.
        """
        measured = (
            self._measure(item, prompt.encoding, max_model_len)
            if isinstance(item, str)
            else _cut(Ids(item), prompt.encoding, max_model_len)
            for item in prompt.prompts
        )
        if len(prompt.prompts) == 1:
            return tuple(measured)
        return tuple(MeasuredPrompt(one.tokens, None) for one in measured)  # all their tokens would be large

    def count_text(self, text: str) -> int:
        """The tokens of a plain text; of a very long one an estimate: as its beginning, or as ordinary text."""
        beginning = text[:_ESTIMATED_FROM]
        look(encoding_seconds(beginning))
        with _PANICS:
            tokens = len(self._encode(beginning.encode(errors="replace").decode(), True))
        rest = len(text) - len(beginning)
        return tokens + rest * max(tokens, len(beginning) // _CHARS_OF_A_TOKEN) // max(1, len(beginning))

    def render(self, prompt: ChatPrompt, most: int = sys.maxsize) -> str:
        """The text to encode, of so many characters at most. Raises as `measure_chat`.

        Raises:
            OutputTooLongError: it has more.
        """
        template = self._plain if prompt.tools is None else self._with_tools
        if template is None:
            raise NeedsEngineError("the tokenizer has no chat template")
        messages = conversation(prompt.messages, template.content_format)
        if not template.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = fold_developer(messages)
        # `documents` and the two flags are arguments of the renderer itself: they pass even if the template reads none.
        passed = template.variables | {"documents", "add_generation_prompt", "continue_final_message"}
        given = prompt.template_kwargs
        kwargs = {name: given[name] for name in passed if name in given}
        if template.indents and _indented([messages, prompt.tools, kwargs]) > _MOST_INDENTED:
            raise InvalidRequestError("The request holds too many values, or they are nested too deeply.")
        try:
            with bounded(most):
                return self._tokenizer.render(template, messages, prompt.tools, kwargs)
        except (OutputTooLongError, MemoryError):
            raise
        except RecursionError:
            raise InvalidRequestError("The request is nested too deeply for the model's chat template.") from None
        except jinja2.TemplateError as error:
            said = str(error)[:_LONGEST_REFUSAL]
            raise InvalidRequestError(said.encode(errors="replace").decode()) from None
        except Exception as error:  # noqa: BLE001
            # A template fails on odd input in the engine too; let the engine word the error.
            raise NeedsEngineError(f"rendering failed ({type(error).__name__})") from None

    def _encode(self, text: str, special: bool) -> Tokens:  # noqa: FBT001  # read at each call
        return self._tokenizer.encode(text, special=special)

    def _measure(self, text: str, encoding: Encoding, max_model_len: int) -> MeasuredPrompt:
        look(encoding_seconds(text))
        if not text.isascii() and _SURROGATE.search(text):
            raise InvalidRequestError("The prompt is not valid Unicode: it holds a lone surrogate.")
        most = encoding.most_tokens(max_model_len)
        with _PANICS:
            if most is None or most > max_model_len:  # the engine refuses it, in its own words
                if (tokens := self._surely(text, max_model_len + 1, max_model_len)) > max_model_len:
                    raise PromptTooLongError(tokens)
            elif self._surely(text, most, max_model_len) >= most:
                return MeasuredPrompt(most, None)
            return _cut(self._tokens(text, encoding), encoding, max_model_len)

    def _tokens(self, text: str, encoding: Encoding) -> Tokens:
        if self._pieces is None or encoding.add_special_tokens or len(text) <= PIECE:
            return self._encode(text, encoding.add_special_tokens)
        return Ids(self._pieces.ids(text))

    def _surely(self, text: str, enough: int, max_model_len: int) -> int:
        """A lower bound of a text's tokens, found without encoding all of it: `enough`, or 0 for a short text.

        Encoding takes 130 bytes of memory per character, so it never gets more characters than a text that fits would
        have.

        Raises:
            NeedsEngineError: it is long, and the tokens found are too few to tell.
        """
        if len(text) > max_model_len * self.max_chars_per_token:
            return math.ceil(len(text) / self.max_chars_per_token)
        window = _CHARS_PER_TOKEN * (max_model_len + 1)
        if len(text) <= 2 * window:
            return 0
        if self._strips:
            raise NeedsEngineError("the prompt is long, and some tokens take any number of blanks along")
        tokens = 0
        for start in range(0, len(text), window):
            look()
            # Only the ends of a part may be encoded differently in the whole text: the margin covers that.
            found = len(self._encode(text[start : start + window], False)) - 2 * self.max_chars_per_token
            tokens += max(0, found)
            if tokens >= enough:
                return tokens
        raise NeedsEngineError("the prompt has very few tokens for its length")


class _Panics:
    """Lets the engine count what the tokenizer's compiled code breaks off at: that is no ordinary exception."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and kind.__module__ == "pyo3_runtime":
            raise NeedsEngineError("the tokenizer broke off") from None


_PANICS = _Panics()


def cut(tokens: int, encoding: Encoding, max_model_len: int) -> int:
    """The number of tokens that truncation leaves of a prompt."""
    most = encoding.most_tokens(max_model_len)
    return tokens if most is None else min(tokens, most)


def _indented(values: list[Any]) -> int:
    """The number of these values and of all inside them, each times its depth.

    As indented JSON each stands on a line of its own: 60 KB of brackets in brackets become 100 MB of blanks.
    """
    sum_, depth = 0, 0
    while values:
        depth += 1
        sum_ += depth * len(values)
        inner: list[Any] = []
        for value in values:
            if isinstance(value, list):
                inner += value
            elif isinstance(value, dict):
                inner += value.values()
        values = inner
    return sum_


def _over(tokens: int, encoding: Encoding, max_model_len: int) -> MeasuredPrompt:
    """A prompt of which no more is known than that it has at least so many tokens, and does not fit."""
    most = encoding.most_tokens(max_model_len)
    if most is None or most > max_model_len:
        raise PromptTooLongError(tokens)
    return MeasuredPrompt(most, None)


def _cut(encoded: Tokens, encoding: Encoding, max_model_len: int) -> MeasuredPrompt:
    tokens = cut(len(encoded), encoding, max_model_len)
    return MeasuredPrompt(tokens, encoded if tokens == len(encoded) else None)


_LOADING: dict[TokenizerSource, threading.Lock] = {}
"""One lock for each source: a tokenizer that takes long to load keeps nobody from another one."""

_LOADED: dict[TokenizerSource, Renderer] = {}
_LOADED_FROM: dict[TokenizerSource, bytes] = {}
"""The digest of the files that each was first loaded from."""
_USED_AT: dict[TokenizerSource, float] = {}
"""When each was last used, in monotonic seconds."""
_MOST_LOADED = 16
"""Most tokenizers, but for those in use: to load one again holds the GIL, and so the event loop, for 0.2 to 1.4 s
(ADR 35)."""
_IN_USE = 3600.0
"""Seconds for which one is in use after each use."""

_OTHERWISE = "give another folder or hub id with --tokenizer"


def renderer(source: TokenizerSource, files: bytes | None = None) -> Renderer:
    """Load a tokenizer, once in each process; may take seconds, and the network for a hub id that is not cached.

    If the hub does not answer, only cached files are used: asking an unreachable hub for file after file, each with its
    client's retries, would hold a worker for minutes.

    Args:
        source: of the tokenizer.
        files: of the gateway's own (`loaded_from`), for one that must not be another; None for any.

    Raises:
        TokenizerUnavailableError: it cannot be loaded, or the engine builds this model's prompts with its own code.
        TokenizerChangedError: those are not its files any more.
        NeedsEngineError: it cannot be loaded just now, but is asked for by its files.
    """
    try:
        found = _once(source)
    except TokenizerUnavailableError as error:
        if files is None:
            raise
        if error.passes:
            raise NeedsEngineError(str(error)) from None
        raise _changed(source) from error
    if files is not None and found.files != files:
        raise _changed(source)
    return found


def _changed(source: TokenizerSource) -> TokenizerChangedError:
    return TokenizerChangedError(
        f"the files of the tokenizer {source.name} changed or vanished since kvgate loaded it: prompts for which it has"
        " to be loaded again, as large ones, are counted by the engine or estimated; restart kvgate to load it anew"
    )


def loaded_from(source: TokenizerSource) -> bytes | None:
    """The digest of the files from which this process first loaded a tokenizer; None if it has not yet."""
    return _LOADED_FROM.get(source)


def _once(source: TokenizerSource) -> Renderer:
    _USED_AT[source] = time.monotonic()
    known = _LOADED.get(source)
    if known is not None:
        return known
    with whole(), _LOADING.setdefault(source, threading.Lock()):
        if source not in _LOADED:
            made = _load(source)
            unused = [known for known in [*_LOADED] if time.monotonic() - _USED_AT[known] >= _IN_USE]
            for oldest in sorted(unused, key=_USED_AT.__getitem__)[: max(0, len(_LOADED) + 1 - _MOST_LOADED)]:
                _LOADED.pop(oldest, None)
            _LOADED_FROM.setdefault(source, made.files)
            _LOADED[source] = made
        return _LOADED[source]


def is_quick(source: TokenizerSource) -> bool:
    """Whether `renderer` has it at once, and it encodes a short text in no time: not in Python."""
    known = _LOADED.get(source)
    return known is not None and known.quick


def _load(source: TokenizerSource) -> Renderer:
    # On the calling thread: the way to a pool of threads and back costs an eighth of a text of 1 KB.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = Path(source.name)
    if folder.is_absolute() and not folder.is_dir():  # often a folder of the engine's, in another container
        raise TokenizerUnavailableError(f"there is no folder {source.name} on this machine; {_OTHERWISE}")
    cached = not folder.is_dir()
    offline = cached and not hub_answers()
    try:
        files = fetched(source.name, offline=offline) if cached else folder
        _check_engine_uses_template(files)
        known = digest(files, cached=cached)  # before it is loaded: files that change meanwhile must show as others
        return Renderer(_tokenizer(source, files, offline=offline), source.chat_template, known)
    except TokenizerUnavailableError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0][:200]
        reason = "its files are not cached here" if missed(error) else f"{type(error).__name__}: {said}"
        if offline:
            reason += " (the hub is out of reach: only what is cached here was looked at)"
        raise TokenizerUnavailableError(
            f"the tokenizer of {source.name} cannot be loaded: {reason}; {_OTHERWISE}", passes=lacking(error)
        ) from error


def _tokenizer(source: TokenizerSource, files: Path, *, offline: bool) -> Tokenizer:
    if not source.trust_remote_code:
        try:
            return FastTokenizer(files)
        except UnlikeError:
            pass
    return load(source.name, trust_remote_code=source.trust_remote_code, offline=offline)


def _check_engine_uses_template(files: Path) -> None:
    if (files / "tekken.json").exists() and (files / "params.json").exists():
        raise TokenizerUnavailableError("Mistral's own tokenizer encodes this model's prompts")
    try:
        config: Json = json.loads((files / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    own = {*(config.get("architectures") or ())} & _ENCODERS_OF_THEIR_OWN
    own |= {config.get("model_type")} & _TYPES_OF_THEIR_OWN
    if own:
        raise TokenizerUnavailableError(f"the engine builds prompts for {own.pop()} by code of its own")


def _compile(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    """Have a template compiled: one of 12 KB takes 50 ms, and the first count may be on the event loop."""
    with contextlib.suppress(Exception):  # it is compiled before it is rendered, and need not take this message
        tokenizer.render(template, [{"role": "user", "content": ""}], None, {})


def _strips(tokenizer: Tokenizer) -> bool:
    """Whether a token may take blanks beside it along, any number of them."""
    backend = tokenizer.backend
    return backend is None or any(it.lstrip or it.rstrip for it in backend.get_added_tokens_decoder().values())


def _pieces(tokenizer: Tokenizer, templates: Sequence[str]) -> Pieces | None:
    """The memory of a tokenizer's pieces; None where a text cannot be cut."""
    backend = tokenizer.backend
    if backend is None:
        return None
    added = backend.get_added_tokens_decoder().values()
    shown = [token.content for token in added if any(token.content in source for source in templates)]
    cuts = safe_cuts(added, [*shown, *tokenizer.special_tokens])
    if cuts is None:
        return None
    return Pieces(lambda texts: [one.ids for one in backend.encode_batch_fast(texts, add_special_tokens=False)], cuts)
