"""The processes that carry requests or decide: how many there are, and what each is told beside its settings."""

import os

from gateway.config.settings import Settings

KEY = "KVGATE_HASH_KEY"
"""The variable that gives fronts the key of their hashes, in hex."""


def is_cut(settings: Settings) -> bool:
    """Whether the process that decides is not the one that carries requests.

    It is not where engines come and go: what waits for one stays in its place while a reload replaces either process.
    """
    several = worker_count(settings) > 1 or settings.tier.redis is not None
    return several or any(model.engine is not None and model.engine.on_demand for model in settings.models)


def worker_count(settings: Settings) -> int:
    """How many processes carry requests."""
    workers = settings.server.workers
    return max(1, len(os.sched_getaffinity(0)) - 1) if workers == "auto" else workers
