"""The colours of a measurement: one for each subject, wherever it is drawn or named."""

from collections.abc import Iterable

KNOWN = {"direct": "#0072b2", "limited": "#d55e00", "kvgate": "#009e73"}
"""The same on every page."""
OTHERS = ("#c0699a", "#b8860b", "#7f6ad6")
"""Colour-blind readers can tell all of these apart too, on either background."""
BACKGROUNDS = ("#ffffff", "#0d1117")
"""The page's background, by day and by night."""
TURN = 137.5
"""Degrees of hue between colours for further subjects. No two come out alike."""


def colours(subjects: Iterable[str]) -> dict[str, str]:
    """A colour of its own for each of these names."""
    names = list(dict.fromkeys(subjects))
    known = {name: KNOWN[name] for name in names if name in KNOWN}
    free = [*OTHERS, *(colour for name, colour in KNOWN.items() if name not in known)]
    unknown = [name for name in names if name not in known]
    free += [f"hsl({number * TURN % 360:.0f} 60% 50%)" for number in range(len(unknown) - len(free))]
    return {**known, **dict(zip(unknown, free, strict=False))}
