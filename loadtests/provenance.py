"""The provenance of a measurement. A figure without it is a rumour."""

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


def provenance(**extra: str) -> dict[str, object]:
    """Hardware, versions, commit and command line, plus the caller's additions."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", f"loadtests.{Path(sys.argv[0]).stem}", *map(without_user, sys.argv[1:])],
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("kvgate", "uvicorn", "uvloop", "httptools", "aiohttp")},
        **extra,
    }


def without_user(url: str) -> str:
    """A URL, or an argument with one, without the user name and password before its host."""
    return re.sub(r"://[^/?#]*@", "://", url)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit, with a plus if tracked files differ. Results, which measurements write, do not count."""
    try:
        commit = _git("describe", "--always", "--abbrev=12")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs/results")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()
