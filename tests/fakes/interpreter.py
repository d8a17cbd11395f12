"""An interpreter that has the fake vLLM where a real one would have vLLM: kvgate launches it as an engine of its own.

    python tests/fakes/interpreter.py -m vllm.entrypoints.openai.api_server --model M --port N ...

Of vLLM's arguments it takes those that are the fake's too. `--fake-fails TEXT` ends it with that error at once, and
`--fake-pids FILE` has it append its process id to a file when it starts.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def made(folder: Path) -> Path:
    """An executable in that folder that is such an interpreter."""
    executable = folder / "python-with-fake-vllm"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    executable.chmod(0o755)
    return executable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--port")
    parser.add_argument("--load-format")
    parser.add_argument("--fake-fails")
    parser.add_argument("--fake-pids", type=Path)
    given, rest = parser.parse_known_args()
    if given.fake_pids:
        with given.fake_pids.open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    if given.fake_fails:
        sys.exit(given.fake_fails)
    passed = [argument for argument in rest if not argument.startswith(("--host", "127.", "--disable"))]
    argv = [sys.executable, "-m", "tests.fakes.vllm", "--port", given.port, "--model", given.served_model_name]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    os.execve(sys.executable, [*argv, "--root", given.model, *passed], environ)  # noqa: S606


if __name__ == "__main__":
    main()
