"""One bound on what all flows hold together. While others hold some, a flow gets at most half of what they leave."""

from collections import Counter
from collections.abc import Callable


class Shares:
    """Amounts held by flow.

    Args:
        most: the bound in force on all amounts together. A flow that is alone may hold all of it at once.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._of_flow: Counter[str] = Counter()
        self.held = 0
        """By all flows."""

    def takes(self, flow: str, amount: int) -> bool:
        """Whether a flow may hold so much more."""
        if not self.held:
            return amount <= self._most()
        own = self._of_flow[flow] + amount
        return own + amount <= self._most() - self.held

    def add(self, flow: str, amount: int) -> None:
        """Note that a flow holds so much more; a negative amount is given back."""
        self.held += amount
        self._of_flow[flow] += amount
        if not self._of_flow[flow]:
            del self._of_flow[flow]
