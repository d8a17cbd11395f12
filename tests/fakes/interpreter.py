"""An interpreter that has the fake vLLM where a real one would have vLLM: kvgate launches it as an engine of its own.

    python tests/fakes/interpreter.py -m vllm.entrypoints.openai.api_server --model M --port N ...

Of vLLM's arguments it takes those that are the fake's too. `--fake-fails TEXT` ends it with that error at once,
`--fake-loads` has it load for ever and not hear SIGTERM, as vLLM while it loads weights, and `--fake-pids FILE` has it
append its process id to a file when it starts. `--fake-slow FILE` has it begin after as many seconds as the file says,
if it is there then, and `--fake-fails-by FILE` ends it with the error in that file; `--fake-fails-once FILE` likewise,
and removes it.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def made(folder: Path) -> Path:
    """An executable in that folder that is such an interpreter."""
    executable = folder / "python-with-fake-vllm"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    executable.chmod(0o755)
    return executable


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", dest="module")
    parser.add_argument("-c", dest="probe")
    parser.add_argument("--model")
    parser.add_argument("--served-model-name")
    parser.add_argument("--port")
    parser.add_argument("--fake-fails")
    parser.add_argument("--fake-loads", action="store_true")
    parser.add_argument("--fake-pids", type=Path)
    parser.add_argument("--fake-slow", type=Path)
    parser.add_argument("--fake-fails-by", type=Path)
    parser.add_argument("--fake-fails-once", type=Path)
    given, rest = parser.parse_known_args()
    if given.probe:  # whether it has vllm
        return
    if given.fake_pids:
        with given.fake_pids.open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    if given.fake_slow and given.fake_slow.exists():
        time.sleep(float(given.fake_slow.read_text()))
    if given.fake_fails_by and given.fake_fails_by.exists():
        sys.exit(given.fake_fails_by.read_text())
    if given.fake_fails_once and given.fake_fails_once.exists():
        error = given.fake_fails_once.read_text()
        given.fake_fails_once.unlink()
        sys.exit(error)
    if given.fake_fails:
        sys.exit(given.fake_fails)
    if given.fake_loads:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    argv = [sys.executable, "-m", "tests.fakes.vllm", "--as-vllm", "--port", given.port]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    sleep = "works" if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" else "missing"
    argv += ["--model", given.served_model_name, "--root", given.model, f"--sleep={sleep}", *rest]
    os.execve(sys.executable, argv, environ)  # noqa: S606


if __name__ == "__main__":
    main()
