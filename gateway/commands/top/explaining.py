"""An explanation as text: the verdict, what the request would take, and each endpoint's answer."""

from rich.text import Text

from gateway.admission.explanation import Candidate, Explanation
from gateway.commands.top.figures import duration, percent
from gateway.ops.explained import Explained
from gateway.ops.people import harmless


def explanation(explained: Explained) -> Text:
    """All of it, in lines."""
    decision = explained.decision
    lines = [
        _verdict(decision),
        Text(
            harmless(
                f"{explained.api} of {explained.flow}, band {explained.band}, for {explained.model}: "
                f"{explained.prompt_tokens:,} tokens in ({explained.counted}), at most {explained.max_tokens:,} out, "
                f"{decision.predicted_output:,} expected"
            )
        ),
    ]
    if times := _times(decision):
        lines.append(Text(times))
    lines += [_candidate(candidate) for candidate in decision.candidates]
    return Text("\n").join(lines)


def _verdict(decision: Explanation) -> Text:
    to = "" if decision.endpoint is None else f" to {harmless(decision.endpoint)}"
    if decision.verdict == "dispatch":
        would = "" if decision.would is None else f"; enforced, it would be {decision.would}"
        return Text(f"It would be sent{to} now (rule {decision.rule}){would}.", "bold green")
    if decision.verdict == "queue":
        return Text(f"It would wait{to and f', then go{to}'} (rule {decision.rule}).", "bold yellow")
    again = "" if decision.retry_after is None else f", to come back in {duration(decision.retry_after)}"
    return Text(f"It would be refused: {decision.verdict} (rule {decision.rule}){again}.", "bold red")


def _times(decision: Explanation) -> str:
    told = (
        ("in the queue", decision.predicted_wait),
        ("to its first token then", decision.predicted_prefill),
        ("target", decision.ttft_target),
    )
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in told if seconds is not None)


def _candidate(candidate: Candidate) -> Text:
    text = Text().append(*(("✔ ", "green") if candidate.takes else ("✘ ", "red")))
    text.append(harmless(candidate.endpoint), "bold")
    lacks = "" if candidate.lacks is None else f", lacks {candidate.lacks:,.3g} {candidate.unit}"
    return text.append(
        f": {candidate.rule}{lacks}; KV {percent(candidate.usage)}, peak {percent(candidate.forecast_without)}, "
        f"{percent(candidate.forecast_with)} with it"
    )
