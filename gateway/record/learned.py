"""What the cores have learned of output lengths, kept in files from one gateway to the next."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from gateway.admission.events import Learned

FORMAT = 1
"""Goes into the names: a file of another format is never read."""

_log = structlog.get_logger("kvgate.learned")
_LARGEST = 2**20
"""Bytes of a file: ten times what is ever kept."""
_LONGEST = 2**31
"""Tokens of an output."""
_decoder = msgspec.json.Decoder(Learned)


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a program keeps its state: systemd's `StateDirectory`, else as the XDG base directories say."""
    if given := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given)
    home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/"), ".local", "state")
    return Path(home, "kvgate")


def revision(root: str | None) -> str:
    """What tells a model in a folder from another one that was there before: its `config.json`. Of hub ids, nothing."""
    with contextlib.suppress(OSError, ValueError):  # the latter for what can be no path
        if root is not None:
            return hashlib.sha256(Path(root, "config.json").read_bytes()).hexdigest()
    return ""


class LearnedFiles:
    """One file for each model. What cannot be read or written is done without; the latter is said once.

    Args:
        folder: made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = False

    def read(self, model: str, root: str | None) -> Learned | None:
        """What an earlier gateway kept of a model of that name, loaded from there; None where there is nothing."""
        try:
            learned = _decoder.decode(_content(self._file(model, root)))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        kinds = (learned.everything, *(outputs.lengths for outputs in learned.outputs))
        plausible = all(length is None or 0 <= length < _LONGEST for lengths in kinds for length in lengths)
        return learned if plausible else None

    def write(self, model: str, root: str | None, learned: Learned) -> None:
        """Keep this. For nobody else's eyes: it tells what kind of work is done here."""
        file = self._file(model, root)
        partial = file.with_suffix(f".{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as kept:  # noqa: PTH123
                kept.write(msgspec.json.encode(learned))
            partial.replace(file)
        except OSError as error:
            if not self._told:
                self._told = True
                _log.warning("what was learned cannot be kept", folder=str(self._folder), reason=error.strerror)

    def _file(self, model: str, root: str | None) -> Path:
        key = msgspec.json.encode([FORMAT, model, root, revision(root)])
        return self._folder / "learned" / f"{hashlib.sha256(key).hexdigest()[:32]}.json"


def _content(file: Path) -> bytes:
    """What is in a file that is one, and no pipe or device; more than is ever kept is read as nothing."""
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as kept:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(kept.fileno()).st_mode):
            return b""
        content = kept.read(_LARGEST + 1)
    return content if len(content) <= _LARGEST else b""
