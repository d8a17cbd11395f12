"""PURE. All samples of a Prometheus exposition, by name and labels: read now and then, so the whole is parsed."""

import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from engine.plan.histogram import Histogram

NONE: Mapping[str, str] = {}


class Samples:
    """One answer to `GET /metrics`. Samples that have the requested labels count together.

    Raises:
        ValueError: it is no Prometheus exposition.
    """

    def __init__(self, text: str) -> None:
        self._found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    self._found.setdefault(sample.name, []).append((sample.labels, sample.value))

    def has(self, name: str) -> bool:
        """Whether there is such a sample."""
        return name in self._found

    def values(self, name: str, where: Mapping[str, str] = NONE) -> list[float]:
        """Every sample that has these labels."""
        return [value for labels, value in self._found.get(name, ()) if where.items() <= labels.items()]

    def total(self, name: str, where: Mapping[str, str] = NONE) -> float | None:
        """The sum of these samples; None if there are none."""
        values = self.values(name, where)
        return sum(values) if values else None

    def by(self, label: str, name: str, where: Mapping[str, str] = NONE) -> dict[str, float]:
        """The sums of these samples for each value of a label."""
        sums: dict[str, float] = {}
        for labels, value in self._found.get(name, ()):
            if label in labels and where.items() <= labels.items():
                sums[labels[label]] = sums.get(labels[label], 0.0) + value
        return sums

    def histogram(self, name: str, where: Mapping[str, str] = NONE, *, scale: float = 1.0) -> Histogram:
        """The sum of these histograms, whose edges must be equal. `scale` turns their values into whole numbers."""
        counts = {float(edge): count for edge, count in self.by("le", f"{name}_bucket", where).items()}
        scaled = [(round(edge * scale, 6), count) for edge, count in sorted(counts.items())]
        return Histogram.from_cumulative(scaled, (self.total(f"{name}_sum", where) or 0.0) * scale)
