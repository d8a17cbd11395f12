"""The search for the llama-server of this machine."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from engine.cache import SetupError
from engine.llama import planned
from engine.llama.kind import LLAMA_SERVER
from engine.spec import EngineKind

NAME = "llama-server"
PACKAGE = "xllamacpp"
"""The package of the extra `llama`: llama.cpp with its server, built for processors."""
IN_PROCESS = replace(
    LLAMA_SERVER,
    words=("-P", "-m", "engine.llama.server"),
    filled=lambda model, args, _cards, _named, engines: planned.filled(model, args, (), engines),
    shortage=lambda spec, _environ, _gpus, host_free: planned.shortage(spec, (), host_free),
)
"""The same server, run by a Python that has the package, on the processor."""


def llama_server(given: str | None, environ: Mapping[str, str] = os.environ) -> tuple[EngineKind, Path]:
    """Return how a llama-server is launched here, and its program.

    In this order: the one given; `llama-server` in PATH; the package `xllamacpp`, where it is installed beside kvgate.

    Args:
        given: Path or name of the program; None to look for one.
        environ: kvgate's environment.

    Raises:
        SetupError: The one given is no program, or there is none.
    """
    found = shutil.which(given or NAME, path=environ.get("PATH"))
    if found is not None:
        return LLAMA_SERVER, Path(found)
    if given is not None:
        why = "it may not be executed" if Path(given).exists() else "there is no such program"
        raise SetupError(f"engine.llama_server = {given}", why, "Name the file of llama.cpp's `llama-server`.")
    if importlib.util.find_spec(PACKAGE) is not None:
        return IN_PROCESS, Path(sys.executable)
    raise SetupError(
        NAME,
        "there is none here to serve a GGUF file with",
        "Install llama.cpp, so that `llama-server` is in PATH, or name its file with engine.llama_server "
        "(--llama-server). For this machine's processor alone: pip install 'kvgate[llama]'.",
    )
