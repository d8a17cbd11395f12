"""Numbers that fill a range evenly."""

GOLDEN = 0.6180339887498949
"""Its multiples, modulo 1, spread evenly however many there are: a low-discrepancy sequence."""


def spread(count: int) -> float:
    """From 0 to 1, far from that of any near count."""
    return count * GOLDEN % 1
