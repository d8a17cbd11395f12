"""The cache of things made once, such as the engine's environment: locked, redone after a crash, progress shown."""

import contextlib
import fcntl
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from engine import guard

Progress = Callable[[str], None]
"""Takes one line about the work in progress, for a human."""

MARKER = ".kvgate-complete"
"""The file that marks a folder as finished. It is written last, so an interrupted folder lacks it."""

HEARTBEAT = 5.0
"""Seconds between two progress lines of one step."""


class SetupError(Exception):
    """kvgate could not set something up.

    Args:
        what: What it was, as a user would call it.
        why: The first real error.
        remedy: What to do about it.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}: {why}\n{remedy}")
        self.why = why
        self.remedy = remedy


def to_stderr(line: str) -> None:
    """Show progress on stderr, where it does not mix with a path printed for a script."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the terminal is its purpose


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of kvgate's cache: `$KVGATE_CACHE`, else `$XDG_CACHE_HOME/kvgate`, else `~/.cache/kvgate`."""
    if chosen := environ.get("KVGATE_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvgate"


def made_once(folder: Path, make: Callable[[Path], None], *, what: str, progress: Progress) -> Path:
    """Return `folder`. If no finished one is there, make it first with `make(folder)`.

    A lock file beside the folder keeps two processes from making it at once: the second waits and then uses the
    first one's folder. The kernel frees the lock when its holder dies. A folder without the marker is made anew.

    Raises:
        SetupError: The cache cannot be written, or what `make` raises.
    """
    if (folder / MARKER).exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock"), what, progress):
            if not (folder / MARKER).exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                (folder / MARKER).touch()
    except OSError as error:
        raise SetupError(
            what,
            f"{folder} cannot be made ({error.strerror or error})",
            "Set KVGATE_CACHE to a folder that can be written and has room.",
        ) from error
    return folder


def require_space(folder: Path, needed: int, what: str) -> None:
    """Refuse early to fill the disk.

    Raises:
        SetupError: Fewer than `needed` bytes are free on the disk of `folder`.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            what,
            f"needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free",
            "Make room, or set KVGATE_CACHE to a folder on a larger disk.",
        )


class StepError(Exception):
    """A setup command failed.

    Attributes:
        output: Everything it printed.
    """

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output

    def reason(self) -> str:
        """The line that gives the cause: the first that begins with an error, else the last."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR:", "error:"))]
        return (errors or lines[-1:] or ["it printed nothing"])[0]


def run_step(argv: Sequence[str | Path], *, what: str, progress: Progress, env: Mapping[str, str] | None = None) -> str:
    """Run one setup command, show its progress and duration, and return its output.

    It runs under a guard, so it and its children end with this process.

    Args:
        argv: The command.
        what: The step, in words for a human.
        progress: Gets a line at the start, one every `HEARTBEAT` seconds, and one at the end.
        env: The whole environment of the command; this process's own by default.

    Raises:
        StepError: The command failed.
    """
    started = time.monotonic()
    progress(f"{what} ...")
    lines: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
        with process:
            theirs.close()
            try:
                said = _followed(ours, _stdout(process), lines, lambda: progress(_so_far(what, started, lines)))
            finally:
                ours.close()  # the guard then ends what is left, and itself
    if said != "exited 0":
        raise StepError("\n".join(lines) if said.startswith("exited") else said)
    progress(f"{what}: done in {time.monotonic() - started:.0f} s")
    return "\n".join(lines)


def _stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
    return process.stdout


def _so_far(what: str, started: float, lines: Sequence[str]) -> str:
    last = lines[-1].strip()[:100] if lines else ""
    return f"{what} ... {time.monotonic() - started:.0f} s  {last}".rstrip()


def _followed(channel: socket.socket, pipe: IO[bytes], lines: list[str], beat: Callable[[], None]) -> str:
    """Collect a guarded program's lines, with a beat every `HEARTBEAT`. Return the guard's line about its end."""
    due = time.monotonic() + HEARTBEAT
    partial, said = b"", b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        selector.register(channel, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select(max(0.0, due - time.monotonic())):
                if ready.fileobj is channel:
                    said += (news := channel.recv(4096))
                    if not news or b"exited" in said or b"failed" in said:
                        selector.unregister(channel)
                        channel.shutdown(socket.SHUT_WR)  # ends whatever still holds the pipe
                elif chunk := os.read(pipe.fileno(), 65536):
                    # Progress bars end a line with a carriage return.
                    *whole, partial = (partial + chunk).replace(b"\r", b"\n").split(b"\n")
                    lines.extend(line.decode(errors="replace") for line in whole if line.strip())
                else:
                    selector.unregister(pipe)
            if time.monotonic() >= due:
                due = time.monotonic() + HEARTBEAT
                beat()
    lines.extend([partial.decode(errors="replace")] if partial.strip() else [])
    return said.decode(errors="replace").strip().rpartition("\n")[2]


@contextlib.contextmanager
def _locked(path: Path, what: str, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{what}: another process is making it, waiting for that")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
