"""`kvgate doctor`: the diagnosis of a launch, a machine, a model or a server, with cause and remedy."""

import io
import json as json_format
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from engine.cache import cache_folder
from engine.diagnosis import at_work, machine
from engine.diagnosis.log_cause import read_log
from engine.diagnosis.look import corroborated, look, on_its_way
from engine.diagnosis.model import Examined
from engine.diagnosis.model import examine as examine_model
from engine.diagnosis.service import examine as examine_service
from engine.diagnosis.service import proxied
from engine.diagnosis.sign import Diagnosis
from engine.diagnosis.table import markdown
from gateway.config.fields import usable_key
from gateway.runtime.failure import fail

FOUND = 1
"""Exit code when something is wrong."""
_LOG_BYTES = 64 * 2**20
"""Bytes to read from a log's end."""


def doctor_command(
    model: Annotated[str | None, typer.Argument(help="Model folder or hub id to examine.")] = None,
    log: Annotated[Path | None, typer.Option(help="Log of a vLLM, a `kvgate serve` or a client; - for stdin.")] = None,
    url: Annotated[str | None, typer.Option(help="A vLLM or kvgate that should run.")] = None,
    port: Annotated[int, typer.Option(help="Port that kvgate is to listen on.")] = 8080,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key for --url.")] = None,
    admin_key: Annotated[
        str | None, typer.Option(envvar="KVGATE_AUTH__ADMIN_KEY", help="Admin key of a kvgate at --url.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,  # noqa: FBT002
    table: Annotated[bool, typer.Option("--table", help="Print all that it knows of logs, and end.")] = False,  # noqa: FBT002
) -> None:
    """Say what is wrong and what to do: with this machine and MODEL, with a LOG, or with a server at URL.

    Exit code 0: nothing found. 1: something was. 2: it could not look.
    """
    out = Console(highlight=False, markup=False, soft_wrap=True)
    if table:
        out.print(markdown(), end="")
        return
    parts: dict[str, Examined] = {}
    if log is not None:
        parts[f"log {log}"] = _log(log)
    if url is not None:
        # At a server, MODEL names one of its models, not a folder or a hub id.
        api_key, admin_key = _key("--api-key", api_key), _key("--admin-key", admin_key)
        examined = examine_service(url, model=model, api_key=api_key, admin_key=admin_key)
        parts[url] = replace(examined, findings=(*proxied(url, os.environ), *examined.findings))
    if log is None and url is None:
        parts["this machine"] = _machine(port)
        if model is not None:
            parts[f"model {model}"] = examine_model(model)
    if json:
        out.print(json_format.dumps({name: _plain(part) for name, part in parts.items()}, indent=2))
    else:
        for name, part in parts.items():
            _show(name, part, out)
    sys.exit(FOUND if any(part.findings for part in parts.values()) else 0)


def _key(option: str, given: str | None) -> str | None:
    """A key that can be sent. The HTTP client's error about an unusable key would show it."""
    try:
        return usable_key(given) if given else None
    except ValueError as error:
        fail(f"{option}: {error}")


def _log(path: Path) -> Examined:
    try:
        lines = _tail(path)
    except OSError as error:
        fail(f"{path} cannot be read: {error.strerror}")
    said = (on_its_way(corroborated(found), os.environ) for found in read_log(lines))
    findings = [*said, *at_work.judge(at_work.from_log(lines))]
    return Examined((f"{len(lines):,} lines",), tuple(findings))


def _tail(path: Path) -> list[str]:
    if str(path) == "-":
        return sys.stdin.read().splitlines()
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - _LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()


def _machine(port: int) -> Examined:
    environments = sorted(cache_folder().glob("engine-*"))
    engine = os.environ.get("KVGATE_ENGINE_PYTHON") or ", ".join(str(folder) for folder in environments)
    seen = look(os.environ, (port,), engine)
    return Examined(tuple(machine.looked_at(seen)), tuple(machine.judge(seen)))


def _show(name: str, part: Examined, out: Console) -> None:
    out.print(name)
    for line in part.looked_at:
        out.print(f"  {line}")
    for found in part.findings:
        out.print()
        out.print(f"  ! {found.cause}", style="bold")
        for line in _beneath(found):
            out.print(f"    {line}")
    if not part.findings:
        out.print("  Nothing found.")
    out.print()


def _beneath(found: Diagnosis) -> Iterator[str]:
    if found.remedy:
        yield f"do    {found.remedy}"
    if found.evidence and found.evidence not in found.cause:
        yield f"seen  {found.evidence}"


def _plain(part: Examined) -> dict[str, object]:
    return {
        "looked_at": list(part.looked_at),
        "findings": [
            {
                "sign": found.sign,
                "kind": found.kind.name.lower(),
                "cause": found.cause,
                "remedy": found.remedy,
                "evidence": found.evidence,
                "facts": dict(found.facts),
            }
            for found in part.findings
        ],
    }
