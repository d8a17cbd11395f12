"""A sequence of numbers that fills a range evenly."""

GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 are a low-discrepancy sequence: any number of them is spread evenly."""


def spread(count: int) -> float:
    """A number from 0 to 1, far from those of nearby counts."""
    return count * GOLDEN % 1
