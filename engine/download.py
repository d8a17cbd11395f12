"""The lock that lets one launch at a time download a model into this machine's hub cache."""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from engine.plan.hub import HubSettings, is_model_id
from engine.preflight import is_downloaded


class Download:
    """The right to download one model. An engine holds it from before its start until it loads the weights or ends.

    It is a lock on a file in the hub cache's own `.locks`, so it works between any two kvgates that share the cache.
    The kernel frees it when its holder dies. A model that is already in the cache needs none.

    Args:
        model: Hub id.
        environ: The engine's environment: HF_HOME, HF_HUB_CACHE.
        revision: Branch, tag or commit.
    """

    def __init__(self, model: str, environ: Mapping[str, str], revision: str | None = None) -> None:
        self.model = model
        self._environ = environ
        self._revision = revision
        self._file: IO[bytes] | None = None

    @classmethod
    def of(cls, model: str, environ: Mapping[str, str], revision: str | None = None) -> "Download | None":
        """The download a model would need; None if the model is no hub id."""
        return None if Path(model).exists() or not is_model_id(model) else cls(model, environ, revision)

    def take(self) -> bool:
        """Whether an engine may start now: the model is there, or nobody else is downloading it."""
        if self._file is not None or is_downloaded(self.model, self._environ, self._revision):
            return True
        path = (
            HubSettings.from_environ(self._environ).cache / ".locks" / f"kvgate--{self.model.replace('/', '--')}.lock"
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError:
            return True  # a cache nobody can write to cannot be spoilt
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def give_back(self) -> None:
        """Let the next launch take its turn."""
        if self._file is not None:
            self._file.close()
            self._file = None
