"""As much of Docker's language as the Dockerfile uses: its instructions, stages, and the files a build may see."""

import json
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, continued lines joined."""

    name: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        """What is written as `--name=value` before the arguments."""
        return dict(re.findall(r"--([\w-]+)=(\S+)", self._flags))

    @property
    def arguments(self) -> list[str]:
        """The arguments: of a JSON list, or split as a shell would."""
        rest = self.rest
        return [str(item) for item in json.loads(rest)] if rest.startswith("[") else shlex.split(rest)

    @property
    def rest(self) -> str:
        """Everything after the flags."""
        return self.text[len(self._flags) :].strip()

    @property
    def _flags(self) -> str:
        found = re.match(r"(--[\w-]+=\S+\s*)*", self.text)
        return found[0] if found else ""


@dataclass(slots=True)
class Stage:
    """One `FROM` and what follows it."""

    image: str
    name: str | None
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, name: str) -> Instruction:
        """The instruction of that name that counts."""
        return [instruction for instruction in self.instructions if instruction.name == name][-1]


def parse(text: str) -> list[Stage]:
    """The stages of a Dockerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            image, *alias = re.split(r"\s+AS\s+", rest.strip())
            stages.append(Stage(image, alias[0] if alias else None))
        else:
            stages[-1].instructions.append(Instruction(name, rest.strip()))
    return stages


class Context:
    """The folder that is sent to a build, less what `.dockerignore` keeps out of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        lines = (root / ".dockerignore").read_text().splitlines()
        self._patterns = [
            (not line.startswith("!"), re.compile(_pattern(line.lstrip("!"))))
            for line in lines
            if line[:1] not in ("", "#")
        ]

    def sends(self, path: PurePosixPath) -> bool:
        """Whether a file, relative to the root, is sent. The last pattern that matches it or a folder above decides."""
        names = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
        kept_out = False
        for excludes, pattern in self._patterns:
            if any(pattern.fullmatch(name) for name in names):
                kept_out = excludes
        return not kept_out

    def files(self, source: str) -> list[PurePosixPath]:
        """The files that `COPY source` copies."""
        start = self.root / source
        found = [start] if start.is_file() else [path for path in start.rglob("*") if path.is_file()]
        relative = [PurePosixPath(path.relative_to(self.root).as_posix()) for path in found]
        return [path for path in relative if self.sends(path)]


def _pattern(line: str) -> str:
    line = line.strip().rstrip("/")
    if line.startswith("**/"):
        return f"(.*/)?{_pattern(line[3:])}"
    # fnmatch's * crosses folders, Docker's does not.
    return translate(line).replace(".*", "[^/]*")
