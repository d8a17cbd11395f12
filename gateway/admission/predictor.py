"""How many tokens a request will generate, learned from those like it."""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import inf

from gateway.admission.events import Arrived, Learned, Outputs

WINDOW = 256
"""Lengths of each kind that are remembered: the last ones."""
ENOUGH = 24
"""Lengths of a kind from which on it speaks for itself."""
KINDS = 2048
"""Kinds remembered; the one not heard of for longest is forgotten."""
TOLD = 64
"""Of these, how many another core is told of at most."""
PRIOR = (16.0, 32.0, 64.0, 128.0, 192.0, 256.0, 384.0, 512.0, 1024.0, 2048.0)
"""What outputs are taken to be like while nothing is known."""
CAUTIOUS = 0.7
"""Quantile of every prediction while next to nothing is known. Spread over a range of lengths that are only a guess,
errors do not even out: all are wrong in the same way, and those sent together end together. Higher ones left more of
the cache unused in the first minute than preemptions cost; lower ones preempted."""
TAIL = 4
"""Lengths beyond a request's own from which on they tell how it goes on; with fewer, a Pareto tail does."""

Likeness = tuple[str, int, int, bool, bool]
"""What requests of one kind have in common."""


class Lengths:
    """The last output lengths of one kind, in order of size.

    An output that ended at its `max_tokens` is only known to want more: it counts as infinitely long. A
    prediction is cut at the request's own `max_tokens` anyway.
    """

    __slots__ = ("_recent", "ordered")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self.ordered: list[float] = []

    @property
    def latest(self) -> tuple[int | None, ...]:
        """All of them, the oldest first; None for an endless one."""
        return tuple(None if length == inf else int(length) for length in self._recent)

    def add(self, length: float) -> None:
        """Learn one, and forget the oldest where there are too many."""
        recent, ordered = self._recent, self.ordered
        if len(recent) == WINDOW:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(length)
        insort(ordered, length)


def conditional_quantile(ordered: Sequence[float], level: float, beyond: float) -> float:
    """The length that a share `level` of those over `beyond` does not exceed.

    Where too few are longer, that of a Pareto tail of index 2 that starts there.
    """
    shorter = bisect_right(ordered, beyond)
    longer = len(ordered) - shorter
    if longer < TAIL:
        known = ordered[-1] if longer else 0.0
        return float(max(beyond / (1.0 - level) ** 0.5, known, beyond + 1))
    return ordered[shorter + int(level * longer)]


class Kind:
    """What requests have in common whose outputs are alike: what is known of them, and of them in all flows."""

    __slots__ = ("everybody", "own")

    def __init__(self, own: Lengths, everybody: Lengths) -> None:
        self.own = own
        self.everybody = everybody


class Predictor:
    """Output lengths of one model.

    Requests are of a kind by flow, length of prompt, `max_tokens` (by the power of two above it), tools or not,
    streamed or not. A kind that is not known well enough is like that of all flows together; that, like everything.
    While that is not known either, it is a guess, joined by what was learned so far, and all are predicted alike.

    Prompts are alike within a factor of 1.4: an application's are about as long as its instructions and what it
    retrieves for them. Of the lengths in a production trace of conversations that explains two thirds of the variance.
    """

    def __init__(self) -> None:
        self._lengths: OrderedDict[Likeness, Lengths] = OrderedDict()
        self._all = Lengths()
        self._guess = list(PRIOR)
        """In order of size."""

    def kind(self, arrival: Arrived, *, peek: bool = False) -> Kind:
        """The kind of a request. `peek` leaves no trace of one that was never heard of."""
        demand = arrival.demand
        prompt = (demand.longest_prompt**2).bit_length()  # two for each doubling
        like = (prompt, demand.max_tokens.bit_length(), arrival.tools, arrival.streamed)
        everybody = self._known(("", *like), peek=peek)
        if not arrival.flow:
            return Kind(everybody, everybody)
        return Kind(self._known((arrival.flow, *like), peek=peek), everybody)

    def learn(self, kind: Kind, tokens: int, max_tokens: int) -> None:
        """A sequence of this kind ended after so many tokens of those it was allowed."""
        length = inf if tokens >= max_tokens else float(tokens)
        kind.own.add(length)
        if kind.everybody is not kind.own:
            kind.everybody.add(length)
        if len(self._all.ordered) < ENOUGH:
            insort(self._guess, length)
        self._all.add(length)

    def learned(self) -> Learned:
        """What may be told to another core of this model: nothing of who asked."""
        outputs = []
        for (flow, prompt, max_tokens, tools, streamed), lengths in self._lengths.items():
            if not flow and len(lengths.ordered) >= ENOUGH:
                outputs.append(Outputs(prompt, max_tokens, tools, streamed, lengths.latest))
        return Learned(self._all.latest, tuple(outputs[-TOLD:]))

    def recall(self, learned: Learned) -> None:
        """Start from what another one has learned. One that has learned by itself knows better."""
        if self._all.ordered:
            return
        for length in learned.everything:
            self._all.add(inf if length is None else float(length))
        for like in learned.outputs:
            lengths = self._known(("", like.prompt, like.max_tokens, like.tools, like.streamed), peek=False)
            for length in like.lengths:
                lengths.add(inf if length is None else float(length))

    def predict(self, kind: Kind, level: float, generated: int, max_tokens: int) -> int:
        """Tokens in the end, of a sequence that has generated some and goes on: at most `max_tokens`.

        Args:
            kind: of the request.
            level: 0 to 1; the share of such sequences that should not exceed the answer, once they are known.
            generated: tokens it has.
            max_tokens: the most it may have.
        """
        ordered = self._guess
        for lengths in (kind.own, kind.everybody, self._all):
            if len(lengths.ordered) >= ENOUGH:
                ordered = lengths.ordered
                break
        else:
            level = CAUTIOUS
        predicted = conditional_quantile(ordered, level, float(generated))  # as those it is compared with
        return max_tokens if predicted >= max_tokens else max(int(predicted), min(generated + 1, max_tokens))

    def _known(self, key: Likeness, *, peek: bool) -> Lengths:
        lengths = self._lengths.get(key)
        if peek:
            return Lengths() if lengths is None else lengths
        if lengths is None:
            lengths = self._lengths[key] = Lengths()
            if len(self._lengths) > KINDS:
                self._lengths.popitem(last=False)
        else:
            self._lengths.move_to_end(key)
        return lengths
