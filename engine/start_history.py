"""The history of start times, kept in the cache folder from one kvgate to the next."""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.cache import cache_folder
from engine.phases import StartPhase
from engine.start_times import StartTimes


class StartHistory:
    """The times of one engine's last start. A file that cannot be read or written is ignored.

    Args:
        model: Folder or hub id.
        args: The engine's arguments. Other arguments have times of their own.
        environ: kvgate's environment, which names the cache folder.
    """

    def __init__(self, model: str, args: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        digest = hashlib.sha256(json.dumps([model, *args]).encode()).hexdigest()[:32]
        self._file = cache_folder(environ) / "starts" / f"{digest}.json"

    def read(self) -> StartTimes:
        """The times of the last start; none if there was none."""
        try:
            kept = json.loads(self._file.read_text())
            return StartTimes({StartPhase[name]: float(seconds) for name, seconds in kept.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return StartTimes()

    def write(self, times: StartTimes) -> None:
        """Keep these times."""
        partial = Path(f"{self._file}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({phase.name: round(took, 1) for phase, took in times.seconds.items()}))
            partial.replace(self._file)
