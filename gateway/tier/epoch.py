"""PURE. The number of an owner's term; fronts obey the highest."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """What fronts obey: the highest that they have heard of, and never a lower one again.

    Attributes:
        number: higher than that of any reign before, as far as Redis and the candidate knew.
        owner: the random id of its process, which tells apart two that a Redis without memory numbered alike.
    """

    number: int
    owner: str

    def __str__(self) -> str:
        return f"{self.number}.{self.owner}"


BEFORE_ALL = Epoch(0, "")
"""Lower than any."""
