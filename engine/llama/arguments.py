"""PURE. The arguments of a llama-server that kvgate reads, sets, or refuses.

Source: llama.cpp of November 2026 (`common/arg.cpp`). A flag has its exact name, its value is the next word, and the
last of a repeated flag counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag.

    Attributes:
        name: Its full name.
        others: Its other names.
        off: Names that turn it off. Only a switch has them, and a switch takes no value.
    """

    name: str
    others: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


FLAGS = (
    Flag("--alias", ("-a",)),
    Flag("--api-key"),
    Flag("--api-key-file"),
    Flag("--api-prefix"),
    Flag("--cache-ram", ("-cram",)),
    Flag("--cache-type-k", ("-ctk",)),
    Flag("--cache-type-v", ("-ctv",)),
    Flag("--chat-template-file"),
    Flag("--ctx-size", ("-c",)),
    Flag("--docker-repo", ("-dr",)),
    Flag("--gpu-layers", ("-ngl", "--n-gpu-layers")),
    Flag("--hf-repo", ("-hf", "-hfr")),
    Flag("--host"),
    Flag("--kv-unified", ("-kvu",), ("--no-kv-unified", "-no-kvu")),
    Flag("--model", ("-m",)),
    Flag("--model-url", ("-mu",)),
    Flag("--models-dir"),
    Flag("--models-preset"),
    Flag("--parallel", ("-np",)),
    Flag("--port"),
    Flag("--slots", (), ("--no-slots",)),
    Flag("--ssl-cert-file"),
    Flag("--ssl-key-file"),
    Flag("--threads", ("-t",)),
)

_OWN_MODEL = "the engine's `model`"

REFUSED_FLAGS = {
    "--model": _OWN_MODEL,
    "--model-url": _OWN_MODEL,
    "--hf-repo": _OWN_MODEL,
    "--docker-repo": _OWN_MODEL,
    "--models-dir": "one engine for each model",
    "--models-preset": "one engine for each model",
    "--alias": "the model's `name`",
    "--host": "nothing: the engine listens on 127.0.0.1 only, behind kvgate, or `at` an address in a tier",
    "--port": "nothing: kvgate gives each engine a free port",
    "--api-key": "kvgate's own client keys: only kvgate can reach the engine",
    "--api-key-file": "kvgate's own client keys: only kvgate can reach the engine",
    "--api-prefix": "nothing: kvgate's routes are the client's",
    "--slots": "nothing: kvgate reads there how full the engine is",
    "--ssl-key-file": "TLS in front of kvgate",
    "--ssl-cert-file": "TLS in front of kvgate",
}
"""Arguments that would hide the engine from kvgate, and what to use instead."""

HIDDEN_VARIABLES = frozenset(
    {"LLAMA_API_KEY", "LLAMA_ARG_API_PREFIX", "LLAMA_ARG_HF_REPO", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_MODELS_DIR"}
    | {"LLAMA_ARG_MODELS_PRESET", "LLAMA_ARG_NO_ENDPOINT_SLOTS", "LLAMA_ARG_ENDPOINT_SLOTS"}
    | {"LLAMA_ARG_SSL_CERT_FILE", "LLAMA_ARG_SSL_KEY_FILE"}
)
"""Variables that say the same, as a user's own shell may have them for a server of its own."""

_ON = {spelling: flag for flag in FLAGS for spelling in (flag.name, *flag.others)}
_OFF = {spelling: flag for flag in FLAGS for spelling in flag.off}


def flags(args: Sequence[str]) -> frozenset[str]:
    """The full names of the known flags that are given, or turned off."""
    return frozenset(flag.name for flag, _ in _given(args))


def value(args: Sequence[str], name: str) -> str | None:
    """The value of a flag; None if it is not given or has none."""
    return next((found for flag, found in reversed(list(_given(args))) if flag.name == name and found), None)


def integer(args: Sequence[str], name: str) -> int | None:
    """The value of a flag as a whole number; None if it is none. llama-server reports what is wrong with it."""
    given = value(args, name)
    try:
        return None if given is None else int(given)
    except ValueError:
        return None


def _given(args: Sequence[str]) -> Iterator[tuple[Flag, str]]:
    words = iter(args)
    for word in words:
        spelling = word.replace("_", "-") if word.startswith("--") else word
        if spelling in _OFF:
            yield _OFF[spelling], ""
        elif (flag := _ON.get(spelling)) is not None:
            yield flag, "" if flag.off else next(words, "")
