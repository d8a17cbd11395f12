"""kvgate with several workers, as a process with its owner and its fronts."""

from collections.abc import Callable
from pathlib import Path

import yaml

from tests.integration.kvgate import Kvgate
from tests.unit.engine.processes import descendants


def configure(file: Path, urls: list[str], *, workers: int = 2, **sections: object) -> None:
    """Write the settings of a kvgate in front of these engines."""
    model = {"endpoints": [{"url": url} for url in urls], "tokenizer": "/nonexistent"}
    settings = {"models": [model], "health": {"interval": 0.2}, "admission": {"ttft_target": None}, **sections}
    server = {"workers": workers, "state_dir": "none", "trusted_flow_header": "x-flow"}
    file.write_text(yaml.safe_dump({"server": server, **settings}))


class Workers:
    """A running kvgate with several workers, and its file."""

    def __init__(self, kvgate: Kvgate, file: Path, urls: list[str]) -> None:
        self.kvgate = kvgate
        self.url = kvgate.url
        self.file = file
        self.urls = urls

    def owner(self) -> int:
        (owner,) = self._processes("--owner=")
        return owner

    def owned_by_another_than(self, before: int) -> Callable[[], bool]:
        return lambda: self._processes("--owner=") not in ([], [before])

    def fronts(self) -> list[int]:
        return self._processes("--owner-at=")

    def in_flight(self) -> int:
        return sum(endpoint["in_flight"] for endpoint in self.kvgate.state()["endpoints"])

    def _processes(self, mark: str) -> list[int]:
        found = []
        for pid in descendants(self.kvgate.process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            guard = any(word.endswith("guard.py") for word in words)
            if not guard and any(word.startswith(mark) for word in words):
                found.append(pid)
        return found
