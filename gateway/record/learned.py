"""The store of learned output lengths: kept in files from one gateway to the next."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from gateway.admission.events import Learned
from gateway.runtime.private_file import open_private

FORMAT = 1
"""Part of the file names: a file of another format is never read."""

_log = structlog.get_logger("kvgate.learned")
_LARGEST = 2**20
"""Most bytes of a file: ten times what is ever kept."""
_LONGEST = 2**31
"""Most tokens of an output."""
_decoder = msgspec.json.Decoder(Learned)


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for a program's state: systemd's `StateDirectory`, else by the XDG base directories."""
    if given := environ.get("STATE_DIRECTORY", "").split(":")[0]:
        return Path(given)
    home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/"), ".local", "state")
    return Path(home, "kvgate")


def revision(root: str | None) -> str:
    """The revision of a model in a folder, by its `config.json`, in case another replaced it. Empty for hub ids."""
    with contextlib.suppress(OSError, ValueError):  # `ValueError` if it cannot be a path
        if root is not None:
            return hashlib.sha256(Path(root, "config.json").read_bytes()).hexdigest()
    return ""


class LearnedFiles:
    """One file for each model. Failed reads and writes are ignored; a failed write is logged once.

    Args:
        folder: created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told = False

    def read(self, model: str, root: str | None) -> Learned | None:
        """The lengths an earlier gateway kept for this model and root; None if there are none."""
        try:
            learned = _decoder.decode(_content(self._file(model, root)))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        kinds = (learned.everything, *(outputs.lengths for outputs in learned.outputs))
        plausible = all(length is None or 0 <= length < _LONGEST for lengths in kinds for length in lengths)
        return learned if plausible else None

    def write(self, model: str, root: str | None, learned: Learned) -> None:
        """Keep these lengths. Only the owner may read the file: it shows what kind of work is done here."""
        file = self._file(model, root)
        partial = file.with_suffix(f".{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open_private(partial, "wb") as kept:
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
    """The content of a regular file; empty for pipes, devices, and files larger than any we write."""
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as kept:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(kept.fileno()).st_mode):
            return b""
        content = kept.read(_LARGEST + 1)
    return content if len(content) <= _LARGEST else b""
