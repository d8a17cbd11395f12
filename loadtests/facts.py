"""The facts a reader needs before the first figure: time, machine, load and requests."""

from collections.abc import Iterable
from datetime import UTC, datetime

from loadtests.arrivals import segments
from loadtests.figures import readable
from loadtests.results import Document
from loadtests.scenario import Scenario, Slo


def facts(document: Document) -> dict[str, str]:
    """The facts by heading. Unknown ones are missing."""
    told = document.provenance
    found = {
        "measured": _when(told.get("measured_at"), told.get("commit")),
        "load": "; ".join(_loads(document)),
        "SLO": _slo(document.scenario.slo),
        "machine": ", ".join(
            text.format(told[name])
            for name, text in (
                ("cpu", "{}"),
                ("cores", "{} cores"),
                ("memory_gib", "{} GiB"),
                ("kernel", "Linux {}"),
                ("python", "Python {}"),
            )
            if told.get(name) is not None
        ),
    }
    return {name: text for name, text in found.items() if text}


def _slo(limits: Slo) -> str:
    return f"first token within {limits.ttft:g} s of the arrival, no gap over {limits.gap:g} s"


def _when(at: object, commit: object) -> str:
    day = datetime.fromisoformat(str(at)).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if at else ""
    text = str(commit or "")
    of = f"commit {text.removesuffix('+')}{' with changes' if text.endswith('+') else ''}" if text else ""
    return ", ".join(filter(None, (day, of)))


def _loads(document: Document) -> Iterable[str]:
    scenario = document.scenario
    rounds = 1 + max((run.round for run in document.runs), default=0)
    again = f", {rounds} rounds" if rounds > 1 else ""
    if scenario.concurrency is not None:
        yield f"{scenario.concurrency} clients that wait for their answers, for {scenario.duration:g} s{again}"
        return
    whole = f"1 is {readable(document.capacity)} requests/s"
    for load in document.loads:
        yield f"{_rates(scenario, document.capacity * load)} (load {load:g}; {whole}{again})"


def _rates(scenario: Scenario, rate: float) -> str:
    """Each phase once, since phases repeat until the end."""
    phases = segments(scenario, rate)
    once = phases[: len(scenario.phases)]
    text = ", then ".join(f"{readable(phase.rate)} requests/s for {phase.end - phase.start:g} s" for phase in once)
    return text if len(phases) == len(once) else f"{text}, repeated until {scenario.duration:g} s"
