"""A Dockerfile built and run without Docker: a Debian in a folder, entered by chroot in namespaces of its own.

It stands in for the `python:X-slim-SUITE` images: the same Debian, with Debian's own Python of the same version where
the image has one built from source.
"""

import contextlib
import functools
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from tests.deploy.dockerfile import Context, Instruction, Stage
from tests.deploy.stack import install

MIRROR = "http://deb.debian.org/debian"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED = re.compile(r"PIP_\w+|(HTTPS?|NO|ALL)_PROXY|SSL_CERT_(FILE|DIR)", re.IGNORECASE)
"""What a build takes over from the environment outside: how to reach a package index."""


def debian(image: str, cache: Path) -> Path:
    """An archive of the file system that stands in for an image; made once, then kept.

    Raises:
        AssertionError: it cannot be made; the message says what to do.
    """
    named = re.fullmatch(r"python:(\d+\.\d+)-slim-(\w+)", image)
    assert named, f"{image}: nothing here stands in for it"
    version, suite = named.groups()
    archive = cache / f"{suite}-python{version}-headers.tar"
    if archive.exists():
        return archive
    assert os.geteuid() == 0, "this needs root: chroot and namespaces"
    if shutil.which("mmdebstrap") is None:
        install("mmdebstrap", "debian-archive-keyring")
    cache.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}.tar")
    packages = f"python{version},python{version}-venv,libpython{version}-dev,python3"
    command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", suite, str(partial), MIRROR]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    partial.rename(archive)
    return archive


@contextlib.contextmanager
def in_memory(folder: Path) -> Iterator[Path]:
    """Mount a file system in memory on a folder: 50,000 files come and go in an instant."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


class Container:
    """The file system of one stage, and the way to run things in it."""

    def __init__(self, root: Path, archive: Path) -> None:
        self.root = root
        self.environ = {"PATH": PATH, "HOME": "/root"}
        self.user = "0:0"
        self.folder = PurePosixPath("/")
        root.mkdir()
        # Devices are bound when something runs.
        subprocess.run(["tar", "-xf", archive, "-C", root, "--exclude=./dev/*"], check=True)
        programs = root / "usr" / "local" / "bin"
        (programs / "python").symlink_to("/usr/bin/python3")
        # Optimising takes most of a build, and decides nothing.
        quick = programs / f"{os.uname().machine}-linux-gnu-gcc"
        quick.write_text('#!/bin/sh\nexec "/usr/bin/${0##*/}" "$@" -O0\n')
        quick.chmod(0o755)

    def build(self, stage: Stage, context: Context, stages: Mapping[str, "Container"]) -> None:
        """Carry the instructions of a stage out.

        Raises:
            AssertionError: a command fails; the message is what it printed.
        """
        for instruction in stage.instructions:
            match instruction.name:
                case "WORKDIR":
                    self.folder /= instruction.rest
                    self.inside(self.folder).mkdir(parents=True, exist_ok=True)
                case "ENV":
                    for pair in instruction.arguments:
                        name, value = pair.split("=", 1)
                        self.environ[name] = re.sub(r"\$(\w+)", lambda found: self.environ[found[1]], value)
                case "USER":
                    self.user = instruction.rest
                case "COPY":
                    self._copy(instruction, context, stages)
                case "RUN":
                    self._run(instruction.rest)
                case "LABEL" | "EXPOSE" | "STOPSIGNAL" | "HEALTHCHECK" | "ENTRYPOINT":
                    pass
                case other:
                    raise AssertionError(f"{other}: not known here")

    def command(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
        """What to run outside to run `argv` inside as the image's user: no writes but to /tmp, as with `read_only`.

        When the process outside ends, everything inside does.
        """
        return self._enter(argv, self.user, {**self.environ, **(environ or {})}, mounts="", read_only=True)

    def inside(self, path: PurePosixPath) -> Path:
        """Where a path of the container lies outside."""
        return self.root / path.relative_to("/")

    def _copy(self, instruction: Instruction, context: Context, stages: Mapping[str, "Container"]) -> None:
        *sources, target = instruction.arguments
        for source in sources:
            destination = self.inside(self.folder / target)
            if (origin := instruction.flags.get("from")) is not None:
                shutil.copytree(stages[origin].inside(PurePosixPath(source)), destination, symlinks=True)
                continue
            files = context.files(source)
            assert files, f"COPY {source}: the context has no such file, or .dockerignore keeps it out"
            folder = (context.root / source).is_dir()
            for file in files:
                place = destination / file.relative_to(source) if folder else destination
                if target.endswith("/"):
                    place = destination / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(context.root / file, place)

    def _run(self, script: str) -> None:
        index = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        places, configuration = _pip(*index.values())
        for file in configuration:
            place = self.inside(PurePosixPath(file))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place)
        shutil.copy("/etc/resolv.conf", self.root / "etc" / "resolv.conf")
        shutil.copy("/etc/hosts", self.root / "etc" / "hosts")
        if (bundle := ssl.get_default_verify_paths().cafile) is not None:
            places = [*places, Path(bundle)]
        mounts = "".join(self._bind(place) for place in dict.fromkeys(places))
        argv = ["/bin/sh", "-c", f"cd {self.folder} && {script}"]
        # Of what pip would compile, a gateway that starts needs a fifth.
        environ = {**index, "PIP_COMPILE": "no", **self.environ}
        command = self._enter(argv, self.user, environ, mounts, read_only=False)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"RUN {script}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"

    def _bind(self, place: Path) -> str:
        inner = self.inside(PurePosixPath(place))
        inner.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            inner.mkdir(exist_ok=True)
        else:
            inner.touch()
        return f"mount --rbind {shlex.quote(str(place))} {shlex.quote(str(inner))}\n"

    def _enter(
        self, argv: Sequence[str], user: str, environ: Mapping[str, str], mounts: str, *, read_only: bool
    ) -> list[str]:
        root = shlex.quote(str(self.root))
        enter = f"chroot --userspec={user} {root} /usr/bin/env --ignore-environment"
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in environ.items())
        script = f"""set -e
mount --bind {root} {root}
{mounts}{f"mount -o remount,bind,ro {root}" if read_only else ""}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
exec {enter} {variables} {shlex.join(argv)}
"""  # noqa: S108
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script]


@functools.cache
def _pip(*index: str) -> tuple[list[Path], list[Path]]:
    """Where pip looks on this machine, and its configuration files: both needed inside as they are outside."""
    shown = subprocess.run([sys.executable, "-m", "pip", "config", "debug"], check=True, capture_output=True, text=True)
    listed = [Path(file) for file in re.findall(r"^  (/.*), exists: True$", shown.stdout, re.MULTILINE)]
    # What belongs to this interpreter, as one of a virtual environment, is not looked for by another.
    files = [file for file in listed if not file.is_relative_to(sys.prefix)]
    texts = [*index, *(file.read_text() for file in files)]
    named = [Path(name) for text in texts for name in re.findall(r"(?:^|[\s=])(/[^\s,'\"]+)", text)]
    # The pages of an index in a folder point at files beside that folder.
    named += [Path(name).parent for text in texts for name in re.findall(r"file://(/[^\s,'\"]+)", text)]
    kept = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], check=True, capture_output=True, text=True)
    return [place for place in [*named, Path(kept.stdout.strip())] if place.exists()], files
