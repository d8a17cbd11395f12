"""How many tokens a request will generate, learned from those like it."""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from math import inf
from typing import NamedTuple

from gateway.admission.events import Arrived

WINDOW = 256
"""Lengths of each kind that are remembered: the last ones."""
ENOUGH = 24
"""Lengths of a kind from which on it speaks for itself."""
KINDS = 1024
"""Kinds remembered; the one not heard of for longest is forgotten."""
PRIOR = (16.0, 32.0, 64.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0, 2048.0)
"""What outputs are taken to be like while nothing is known."""
TAIL = 4
"""Lengths beyond a request's own from which on they tell how it goes on; with fewer, a Pareto tail does."""


class Kind(NamedTuple):
    """What requests have in common whose outputs are alike. `flow` is empty in the kind of all flows together."""

    flow: str
    limit: int
    """Class of `max_tokens`: the power of two above it."""
    tools: bool
    streamed: bool


def kind_of(arrival: Arrived) -> Kind:
    """The kind of a request."""
    return Kind(arrival.flow, arrival.demand.max_tokens.bit_length(), arrival.tools, arrival.streamed)


class Lengths:
    """The last output lengths of one kind, in order of size.

    An output that ended at its `max_tokens` is only known to want more: it counts as infinitely long. A
    prediction is cut at the request's own `max_tokens` anyway.
    """

    __slots__ = ("_ordered", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, length: float) -> None:
        """Learn one, and forget the oldest where there are too many."""
        if len(self._recent) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(length)
        insort(self._ordered, length)

    def quantile(self, level: float, beyond: int) -> float:
        """The length that a share `level` of those longer than `beyond` tokens does not exceed."""
        return conditional_quantile(self._ordered, level, beyond)


def conditional_quantile(ordered: list[float] | tuple[float, ...], level: float, beyond: int) -> float:
    """The quantile of the lengths over `beyond`. Where too few are, of a Pareto tail of index 2 that starts there."""
    shorter = bisect_right(ordered, beyond)
    longer = len(ordered) - shorter
    if longer < TAIL:
        known = ordered[-1] if longer else 0.0
        return float(max(beyond / (1.0 - level) ** 0.5, known, beyond + 1))
    return ordered[shorter + int(level * longer)]


class Predictor:
    """Output lengths of one model by kind, each over all flows too, for flows that are not known well enough."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, Lengths] = OrderedDict()
        self._all = Lengths()

    def learn(self, kind: Kind, tokens: int, max_tokens: int) -> None:
        """A sequence of this kind ended after so many tokens of those it was allowed."""
        length = inf if tokens >= max_tokens else float(tokens)
        self._lengths(kind).add(length)
        if kind.flow:
            self._lengths(kind._replace(flow="")).add(length)
        self._all.add(length)

    def predict(self, kind: Kind, level: float, generated: int, max_tokens: int) -> int:
        """Tokens in the end, of a sequence that has generated some and goes on: at most `max_tokens`.

        Args:
            kind: of the request.
            level: 0 to 1; the share of such sequences that should not exceed the answer.
            generated: tokens it has.
            max_tokens: the most it may have.
        """
        lengths = self._known(kind)
        if lengths is None:
            predicted = conditional_quantile(PRIOR, level, generated)
        else:
            predicted = lengths.quantile(level, generated)
        return max_tokens if predicted >= max_tokens else max(int(predicted), min(generated + 1, max_tokens))

    def _known(self, kind: Kind) -> Lengths | None:
        for wider in (kind, kind._replace(flow="")):
            lengths = self._kinds.get(wider)
            if lengths is not None and len(lengths) >= ENOUGH:
                return lengths
        return self._all if len(self._all) >= ENOUGH else None

    def _lengths(self, kind: Kind) -> Lengths:
        lengths = self._kinds.get(kind)
        if lengths is None:
            lengths = self._kinds[kind] = Lengths()
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return lengths
