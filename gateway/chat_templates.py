"""The chat template that a model's engines were told to use: its text, for counting as they do."""

from collections.abc import Sequence
from pathlib import Path

import jinja2

from engine.command import value_of
from gateway.config import ModelSettings
from gateway.settings_sources import ConfigurationError
from gateway.tokens.template import ChatTemplate

FLAG = "--chat-template"


def chat_template(model: ModelSettings) -> str | None:
    """The text of a model's template; None where its tokenizer's own is used.

    Raises:
        ConfigurationError: its file cannot be read, or holds no template.
    """
    given = model.chat_template
    if given is None:
        return None
    try:
        text = given if _is_template(given) else Path(given).read_text()
        ChatTemplate(text)
    except OSError as error:
        raise ConfigurationError(f"chat_template = {given!r}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"chat_template = {given!r}: expected a template, this is not text") from None
    except jinja2.TemplateSyntaxError as error:
        shown = f"line {error.lineno}: {error.message}"
        raise ConfigurationError(f"chat_template = {_shown(given)}: not a Jinja template: {shown}") from None
    return text


def template_of(model: ModelSettings, args: Sequence[str]) -> str | None:
    """What `chat_template` is for an engine with these arguments, where the model does not say.

    A bare name that is no file here may be one of vLLM's own templates. Then nobody knows it here: the probes show that
    the engine differs, and it counts.
    """
    given = model.chat_template or value_of(args, FLAG)
    if given is None or _is_template(given) or "/" in given or Path(given).exists():
        return given
    return None if model.chat_template is None else given


def _is_template(given: str) -> bool:
    """Whether it is a template itself, as vLLM tells it from a path (renderers/chat_utils.py, 0.32)."""
    return any(character in given for character in "{}\n") and not _exists(given)


def _exists(given: str) -> bool:
    try:
        return Path(given).exists()
    except OSError:  # too long for a name
        return False


def _shown(given: str) -> str:
    return "(a template)" if _is_template(given) else repr(given)
