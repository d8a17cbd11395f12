"""The text of the chat template that a model's engines were told to use, so that we count as they do."""

from pathlib import Path

import jinja2

from gateway.config.errors import ConfigurationError
from gateway.config.settings import ModelSettings
from gateway.tokens.template import ChatTemplate


def chat_template(model: ModelSettings) -> str | None:
    """The text of a model's template; None if its tokenizer's own is used.

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


def template_of(model: ModelSettings, argument: str | None) -> str | None:
    """The value of `chat_template` that an engine's argument implies, if the model's settings name none.

    A bare name that is not a file here may be one of vLLM's own templates, which kvgate does not know. Then the probes
    show that the engine differs, and the engine counts.
    """
    given = model.chat_template or argument
    if given is None or _is_template(given) or "/" in given or Path(given).exists():
        return given
    return None if model.chat_template is None else given


def _is_template(given: str) -> bool:
    """Whether it is a template rather than a path, by vLLM's rule (renderers/chat_utils.py, 0.32)."""
    return any(character in given for character in "{}\n") and not _exists(given)


def _exists(given: str) -> bool:
    try:
        return Path(given).exists()
    except OSError:  # too long for a file name
        return False


def _shown(given: str) -> str:
    return "(a template)" if _is_template(given) else repr(given)
