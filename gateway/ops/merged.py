"""PURE. The figures of several processes as those of one.

What is counted is summed. What is measured is one process's to say, the owner's, but for the resources of a process,
of which each has its own.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter

import msgspec

Sample = tuple[str, tuple[str, ...], float]
"""Its name, its labels (a name, a value, a name, ...), its value."""

Exemplar = tuple[str, tuple[str, ...], str, float, float]
"""The name and the labels of its sample, the id of its trace, its value, its Unix time."""

SUMMED = frozenset({"counter", "histogram"})
"""Kinds of metrics that are summed, with those of processes that have ended: a sum must not fall."""
OF_EACH = frozenset(
    {"process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
)
"""Gauges that are summed over the processes that run."""
_CREATED = "_created"


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples, in the words of the Prometheus client."""

    name: str
    meaning: str
    kind: str
    samples: Sequence[Sample]
    exemplars: Sequence[Exemplar] = ()


Figures = Sequence[Family]
"""All that a process counts and measures."""

packed: Callable[[Figures], bytes] = msgspec.msgpack.Encoder().encode
unpacked: Callable[[bytes], list[Family]] = msgspec.msgpack.Decoder(list[Family]).decode


def merged(own: Figures, fronts: Iterable[Figures] = (), gone: Iterable[Figures] = ()) -> list[Family]:
    """The figures of an owner, of the fronts that run, and of those that have ended, as one process's.

    Buckets of a histogram are summed by their edges: all processes have the same. Of several exemplars the last counts.
    """
    sums: dict[str, _Sum] = {}
    for family in (
        *own,
        *(family for family in chain.from_iterable(fronts) if family.kind in SUMMED or family.name in OF_EACH),
        *(family for family in chain.from_iterable(gone) if family.kind in SUMMED),
    ):
        if family.name not in sums:
            sums[family.name] = _Sum(family)
        sums[family.name].add(family)
    return [found.family() for found in sums.values()]


def own_alone(figures: Figures) -> list[Family]:
    """Of a process's figures, those that are no part of a sum."""
    return [family for family in figures if family.kind not in SUMMED and family.name not in OF_EACH]


class _Sum:
    """The sum of one metric."""

    def __init__(self, head: Family) -> None:
        self._head = head
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}
        self._exemplars: dict[tuple[str, tuple[str, ...]], Exemplar] = {}

    def add(self, family: Family) -> None:
        values = self._values
        for name, labels, value in family.samples:
            before = values.get((name, labels))
            if before is None:
                values[name, labels] = value
            elif name.endswith(_CREATED):  # a time
                values[name, labels] = min(before, value)
            else:
                values[name, labels] = before + value
        for exemplar in family.exemplars:
            last = self._exemplars.setdefault(exemplar[:2], exemplar)
            self._exemplars[exemplar[:2]] = max(last, exemplar, key=itemgetter(-1))

    def family(self) -> Family:
        head, values = self._head, [(*series, value) for series, value in self._values.items()]
        return Family(head.name, head.meaning, head.kind, values, tuple(self._exemplars.values()))
