"""PURE. The token counts of a front's requests that the core has yet to hear of.

The core is told only what changes its account: first tokens, and requests that reached the edge of their blocks. All
other counts are kept here until the request ends.
"""

from collections.abc import Mapping

from gateway.admission.events import RequestId


class Counts:
    """The latest counts since the core was told."""

    def __init__(self) -> None:
        self.moved: dict[RequestId, int] = {}
        """Counts of requests that moved since the last batch. Written for every token: by its owner, without a call."""
        self._untold: dict[RequestId, int] = {}
        """Counts at the last batch that the core was not told."""
        self.next_reports: dict[RequestId, float] = {}
        """By request the core was told of: the count at which it wants to hear again."""
        self.everything = False
        """Whether the core wants every count for now."""

    def want(self, next_reports: Mapping[RequestId, float], *, everything: bool) -> None:
        """Note what the core wants to hear next. It may say so of a request that has left meanwhile."""
        known = self.next_reports
        for request, count in next_reports.items():
            if request in known:
                known[request] = count
        self.everything = everything

    def batch(self) -> tuple[list[RequestId], dict[RequestId, int]]:
        """End a batch: the requests that moved since the last, and the counts to tell."""
        moved, self.moved = self.moved, {}
        next_reports, untold = self.next_reports, self._untold
        wanted = next_reports.get
        told = moved if self.everything else {key: count for key, count in moved.items() if count >= wanted(key, 0)}
        untold.update(moved)
        for request in told:
            del untold[request]
            next_reports.setdefault(request, 0)
        return list(moved), told

    def unheard(self) -> dict[RequestId, int]:
        """Every count that the core has not heard."""
        return {**self._untold, **self.moved}

    def renew(self) -> None:
        """Tell each next count: what the core wants to hear has changed."""
        self.next_reports = dict.fromkeys(self.next_reports, 0)

    def forget(self, request: RequestId) -> tuple[int | None, float]:
        """Drop a request that left its endpoint; return its last count, if any, and the next one the core wanted."""
        generated = self._untold.pop(request, None)
        return self.moved.pop(request, generated), self.next_reports.pop(request, 0)

    def latest(self, request: RequestId) -> int:
        """A request's last count; 0 if the core has heard it, or there is none."""
        return self.moved.get(request) or self._untold.get(request, 0)
