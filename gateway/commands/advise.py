"""`kvgate advise`: changes to settings, based on past traffic."""

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gateway.advice.history import HistoryError, recorded, running
from gateway.advice.rules import ENOUGH, Finding, Past, advise
from gateway.config.errors import ConfigurationError
from gateway.runtime.failure import fail

DEFAULT_URL = "http://127.0.0.1:8080"
SECONDS_PER_BYTE = 4e-6
"""Time to try other settings on an event log: 19 s for 5 MB, 45,000 events (measured, one core of a server)."""
PATIENCE = 5.0
"""Seconds too short to announce."""


def advise_command(
    url: Annotated[
        str | None, typer.Option(help=f"A kvgate that runs; {DEFAULT_URL} where no event log is given either.")
    ] = None,
    admin_key: Annotated[str | None, typer.Option(envvar="KVGATE_AUTH__ADMIN_KEY", help="Its admin key.")] = None,
    event_log: Annotated[
        Path | None, typer.Option(help="An event log: what it tells, and what other settings would have done with it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,  # noqa: FBT002
) -> None:
    """Say what to change about engines and settings, and what it would buy, from what really happened."""
    try:
        pasts: list[Past] = []
        if url is not None or event_log is None:
            pasts += running(url or DEFAULT_URL, admin_key)
        if event_log is not None:
            _announce(event_log)
            pasts += recorded(event_log)
    except (HistoryError, ConfigurationError) as error:
        fail(str(error))
    if not pasts:
        fail("no model has been served yet: there is nothing to advise from")
    out = Console(highlight=False, markup=False, soft_wrap=True)
    if json:
        out.print(json_format.dumps({"histories": [_plain(past) for past in pasts]}, indent=2))
        return
    for past in pasts:
        _show(past, out)


def _announce(event_log: Path) -> None:
    """Say how long it will take, if that is long."""
    try:
        expected = event_log.stat().st_size * SECONDS_PER_BYTE
    except OSError:
        return  # its reader reports why
    if expected > PATIENCE:
        _errors().print(f"kvgate: trying other settings with {event_log} takes about {_duration(expected)}")


def _errors() -> Console:
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def _show(past: Past, out: Console) -> None:
    traffic = past.traffic
    span = "" if traffic.span is None else f" in {_duration(traffic.span)}"
    out.print(f"{past.model}: {traffic.requests:,} requests answered{span} ({traffic.source})")
    findings = advise(past)
    if findings is None:
        out.print(f"  Too little to tell: {traffic.requests:,} requests were answered, {ENOUGH:,} are wanted.\n")
        return
    for finding in findings:
        if finding.change is not None:
            out.print(f"  {finding.subject}: {finding.seen}\n    change  {finding.change}\n    gain    {finding.gain}")
    if all(finding.change is None for finding in findings):
        out.print("  Nothing to change.")
    for finding in findings:
        if finding.change is None:
            out.print(f"  fine    {finding.subject}: {finding.seen}")
    out.print()


def _plain(past: Past) -> dict[str, Any]:
    findings: tuple[Finding, ...] | None = advise(past)
    return {
        "model": past.model,
        "enough": findings is not None,
        "wanted_requests": ENOUGH,
        "traffic": asdict(past.traffic),
        "findings": [asdict(finding) for finding in findings or ()],
    }


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} seconds"
