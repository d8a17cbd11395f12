"""PURE. The totals of an engine's work since kvgate began to watch it, across restarts that reset its counters."""

from dataclasses import dataclass

from gateway.endpoints.exposition import EngineMetrics


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the first scrape; None if the engine does not count it. Sizes are tokens.

    Attributes:
        prompt: tokens of prompts, of all clients.
        generated: tokens of answers, of all clients.
        prefix_queried: prompt tokens looked up in the prefix cache.
        prefix_hit: prompt tokens found there.
    """

    preemptions: int | None = None
    prompt: int | None = None
    generated: int | None = None
    prefix_queried: int | None = None
    prefix_hit: int | None = None

    def after(self, before: EngineMetrics, now: EngineMetrics) -> "Totals":
        """The totals after adding the difference of two scrapes."""
        return Totals(
            preemptions=_add(self.preemptions, before.preemptions, now.preemptions),
            prompt=_add(self.prompt, before.prompt_tokens, now.prompt_tokens),
            generated=_add(self.generated, before.generation_tokens, now.generation_tokens),
            prefix_queried=_add(self.prefix_queried, before.prefix_queries, now.prefix_queries),
            prefix_hit=_add(self.prefix_hit, before.prefix_hits, now.prefix_hits),
        )


def fell(before: EngineMetrics, now: EngineMetrics) -> bool:
    """Whether a counter fell: another process answers by now."""
    pairs = (before.generation_tokens, now.generation_tokens), (before.prompt_tokens, now.prompt_tokens)
    return any(was is not None and by_now is not None and by_now < was for was, by_now in pairs)


def _add(total: int | None, before: float | None, now: float | None) -> int | None:
    """Add a counter's growth. A counter that fell was reset to zero in between."""
    if before is None or now is None:
        return total
    return (total or 0) + round(now - before if now >= before else now)
