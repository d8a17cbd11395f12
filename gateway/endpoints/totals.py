"""PURE. What an engine has done since it is watched, from counters that begin anew with each of its processes."""

from dataclasses import dataclass

from gateway.endpoints.exposition import EngineMetrics


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the first scrape; None where the engine does not count it. Sizes are tokens.

    Attributes:
        prompt: of prompts, for whomever.
        generated: of answers, for whomever.
        prefix_queried: of prompts, looked up in the prefix cache.
        prefix_hit: those of them that were there.
    """

    preemptions: int | None = None
    prompt: int | None = None
    generated: int | None = None
    prefix_queried: int | None = None
    prefix_hit: int | None = None

    def after(self, before: EngineMetrics, now: EngineMetrics) -> "Totals":
        """With what happened between two scrapes."""
        return Totals(
            preemptions=_add(self.preemptions, before.preemptions, now.preemptions),
            prompt=_add(self.prompt, before.prompt_tokens, now.prompt_tokens),
            generated=_add(self.generated, before.generation_tokens, now.generation_tokens),
            prefix_queried=_add(self.prefix_queried, before.prefix_queries, now.prefix_queries),
            prefix_hit=_add(self.prefix_hit, before.prefix_hits, now.prefix_hits),
        )


def _add(total: int | None, before: float | None, now: float | None) -> int | None:
    """A counter that fell was set to zero in between."""
    if before is None or now is None:
        return total
    return (total or 0) + round(now - before if now >= before else now)
