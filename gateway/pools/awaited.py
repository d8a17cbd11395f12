"""The requests of a front that wait for an engine outside of a core: only the engine can say what it serves, or count.

Whoever decides which engines run is told of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Awaited:
    """Says for which models requests wait here, whenever that changes.

    Args:
        tell: gets how long the oldest has waited for each, in seconds.
        clock: monotonic seconds.
    """

    def __init__(self, tell: Callable[[Mapping[str, float]], None], clock: Callable[[], float]) -> None:
        self._tell = tell
        self._clock = clock
        self._came: dict[str, dict[object, float]] = {}
        """By model, when each came, the oldest first."""

    @contextmanager
    def waiting(self, model: str) -> Iterator[Callable[[], int]]:
        """A request waits for an engine of this model while the block runs; yields what tells its place, 1 at first."""
        one, here = object(), self._came.setdefault(model, {})
        here[one] = self._clock()
        if len(here) == 1:
            self.say()
        try:
            yield lambda: list(here).index(one) + 1
        finally:
            oldest = next(iter(here)) is one
            del here[one]
            if not here:
                del self._came[model]
            if oldest:
                self.say()

    def say(self) -> None:
        """Say it, also to one who was not there before."""
        now = self._clock()
        self._tell({model: now - next(iter(here.values())) for model, here in self._came.items()})
