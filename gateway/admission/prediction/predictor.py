"""The predictor of output lengths, learned from similar requests."""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from math import inf

from gateway.admission.events import Arrived, Learned, Outputs
from gateway.admission.tuning import TUNING

KINDS = 2048
"""Most kinds remembered; the least recently used is dropped."""
TOLD = 64
"""Most kinds handed to another core."""
_EVENLY = tuple([(number + 0.5) / 16 for number in range(16)])
"""Quantiles whose lengths average to the mean."""

Likeness = tuple[str, int, int, bool, bool]
"""Key of a kind: flow, class of prompt length, class of `max_tokens`, tools, streamed."""


class Lengths:
    """The latest output lengths of one kind, in order of arrival and of size.

    An output that ended at its `max_tokens` would have been longer: it counts as infinite. A prediction is capped at
    the request's own `max_tokens` anyway.
    """

    __slots__ = ("_recent", "ordered")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self.ordered: list[float] = []

    @property
    def latest(self) -> tuple[int | None, ...]:
        """All lengths, oldest first; None for an infinite one."""
        return tuple(None if length == inf else int(length) for length in self._recent)

    def clear(self) -> None:
        """Forget all."""
        self._recent.clear()
        self.ordered.clear()

    def add(self, length: float) -> None:
        """Add a length, and drop the oldest if there are too many."""
        recent, ordered = self._recent, self.ordered
        if len(recent) == TUNING.lengths_kept:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(length)
        insort(ordered, length)


def conditional_quantiles(ordered: Sequence[float], quantiles: Sequence[float], beyond: float) -> list[float]:
    """The quantiles of the lengths over `beyond`.

    If too few are longer, they are the quantiles of a Pareto tail that starts at `beyond`.
    """
    shorter = bisect_right(ordered, beyond)
    longer = len(ordered) - shorter
    if longer < TUNING.tail_lengths:
        least = max(ordered[-1] if longer else 0.0, beyond + 1)
        return [max(beyond / (1.0 - quantile) ** (1.0 / TUNING.tail_index), least) for quantile in quantiles]
    return [ordered[shorter + int(quantile * longer)] for quantile in quantiles]


class Kind:
    """The known lengths of one kind: of its own flow, and of all flows."""

    __slots__ = ("everybody", "own")

    def __init__(self, own: Lengths, everybody: Lengths) -> None:
        self.own = own
        self.everybody = everybody


class Predictor:
    """Output lengths of one model.

    The kind of a request is its flow, prompt length, `max_tokens` (by powers of two), tools or not, streamed or not. A
    kind with too few lengths uses those of all flows; if these are too few, the lengths of all requests; if these are
    too few, the prior together with what was learned so far, at one quantile for all.

    Prompts are similar within a factor of 1.4: an application's prompts are about as long as its instructions and the
    texts that it retrieves. In a production trace of conversations this explains two thirds of the variance.
    """

    def __init__(self) -> None:
        self._lengths: OrderedDict[Likeness, Lengths] = OrderedDict()
        self._all = Lengths()
        self._guess = list(TUNING.prior_lengths)
        """In order of size."""
        self._taught = False
        """Whether it has learned lengths of its own."""

    def kind(self, arrival: Arrived) -> Kind:
        """The kind of a request that has arrived. A new kind is remembered."""
        return self._kind(arrival, self._known)

    def like(self, arrival: Arrived) -> Kind:
        """The kind of a request that is only asked about. Changes nothing."""
        return self._kind(arrival, lambda key: self._lengths.get(key) or Lengths())

    def _kind(self, arrival: Arrived, lengths_of: Callable[[Likeness], Lengths]) -> Kind:
        demand = arrival.demand
        prompt = (demand.longest_prompt**2).bit_length()  # two classes per doubling
        like = (prompt, demand.max_tokens.bit_length(), arrival.tools, arrival.streamed)
        everybody = lengths_of(("", *like))
        if not arrival.flow:
            return Kind(everybody, everybody)
        return Kind(lengths_of((arrival.flow, *like)), everybody)

    def learn(self, kind: Kind, tokens: int, max_tokens: int) -> None:
        """Learn that a sequence of this kind ended after `tokens`, with `max_tokens` allowed."""
        self._taught = True
        length = inf if tokens >= max_tokens else float(tokens)
        kind.own.add(length)
        if kind.everybody is not kind.own:
            kind.everybody.add(length)
        if len(self._all.ordered) < TUNING.lengths_enough:
            insort(self._guess, length)
        self._all.add(length)

    def learned(self) -> Learned:
        """The lengths learned, for another core of this model: without any flow's name."""
        outputs = []
        for (flow, prompt, max_tokens, tools, streamed), lengths in self._lengths.items():
            if not flow and len(lengths.ordered) >= TUNING.lengths_enough:
                outputs.append(Outputs(prompt, max_tokens, tools, streamed, lengths.latest))
        return Learned(self._all.latest, tuple(outputs[-TOLD:]))

    def recall(self, learned: Learned) -> None:
        """Start from the lengths that another core has learned, instead of those recalled before.

        Ignored if there are none, and after own lengths were learned.
        """
        if self._taught or not learned.everything:
            return
        for known in (self._all, *self._lengths.values()):
            known.clear()
        for length in learned.everything:
            self._all.add(inf if length is None else float(length))
        for like in learned.outputs:
            lengths = self._known(("", like.prompt, like.max_tokens, like.tools, like.streamed))
            for length in like.lengths:
                lengths.add(inf if length is None else float(length))

    def predict(self, kind: Kind, quantiles: Sequence[float], generated: int, max_tokens: int) -> list[int]:
        """Predicted lengths of a sequence that has not ended, tokens: at most `max_tokens`.

        Args:
            kind: Kind of the request.
            quantiles: For each prediction the share of such sequences, 0 to 1, that it should cover, once their kind is
                known.
            generated: Tokens that it has generated.
            max_tokens: Most tokens that it may generate.
        """
        ordered = self._of(kind)
        if ordered is None:
            ordered, quantiles = self._guess, [TUNING.prior_quantile] * len(quantiles)
        lengths = conditional_quantiles(ordered, quantiles, float(generated))  # as the known lengths are
        return [max_tokens if length >= max_tokens else int(length) for length in lengths]

    def mean(self, kind: Kind, max_tokens: int) -> float:
        """Mean predicted length of a sequence of this kind, tokens."""
        lengths = self.predict(kind, _EVENLY, 0, max_tokens)
        return sum(lengths) / len(lengths)

    def longest(self, kind: Kind, max_tokens: int) -> int:
        """Tokens that hardly a sequence of this kind exceeds; `max_tokens` while too few lengths are known."""
        known = self._of(kind) is not None
        return self.predict(kind, (TUNING.quantile_top,), 0, max_tokens)[0] if known else max_tokens

    def _of(self, kind: Kind) -> list[float] | None:
        """The lengths to predict such a request by; None if too few are known."""
        for lengths in (kind.own, kind.everybody, self._all):
            if len(lengths.ordered) >= TUNING.lengths_enough:
                return lengths.ordered
        return None

    def _known(self, key: Likeness) -> Lengths:
        lengths = self._lengths.get(key)
        if lengths is None:
            lengths = self._lengths[key] = Lengths()
            if len(self._lengths) > KINDS:
                self._lengths.popitem(last=False)
        else:
            self._lengths.move_to_end(key)
        return lengths
