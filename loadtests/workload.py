"""Open-loop workloads: arrival times, prompt lengths and output lengths."""

import random
from dataclasses import dataclass

VOCABULARY = (100, 5000)
"""Range of token ids inside any vocabulary, away from the special ones at its ends."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request."""

    at: float
    """Seconds after the start."""
    prompt: tuple[int, ...]
    """Token ids."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Poisson arrivals with uniform lengths. The defaults overload a cache of 8,192 tokens."""

    requests: int = 100
    rate: float = 40.0
    """Arrivals per second."""
    prompt_tokens: tuple[int, int] = (100, 200)
    output_tokens: tuple[int, int] = (300, 600)

    def arrivals(self, seed: int) -> list[Arrival]:
        """The arrivals, the same for the same seed."""
        rng = random.Random(seed)
        arrivals, at = [], 0.0
        for _ in range(self.requests):
            at += rng.expovariate(self.rate)
            prompt = tuple(rng.randint(*VOCABULARY) for _ in range(rng.randint(*self.prompt_tokens)))
            arrivals.append(Arrival(at, prompt, rng.randint(*self.output_tokens)))
        return arrivals
