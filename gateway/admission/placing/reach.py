"""The endpoints that a front could not connect to lately. Health is another matter: others may reach them well."""

from collections.abc import Callable
from math import inf

from gateway.admission.events import EndpointId, RequestId, front_of
from gateway.admission.tuning import TUNING


class Reach:
    """What each front cannot reach, for `TUNING.unreached` seconds after it last failed to connect."""

    __slots__ = ("changes_at", "until")

    def __init__(self) -> None:
        self.until: dict[int, dict[EndpointId, float]] = {}
        """By front that cannot reach all endpoints: when each of those may be tried again."""
        self.changes_at = inf
        """Next time at which an endpoint may be tried again."""

    def limited(self, request: RequestId) -> int | None:
        """The front of the request if it cannot reach all endpoints now; else None."""
        front = front_of(request)
        return front if front in self.until else None

    def reaches(self, request: RequestId, endpoint: EndpointId) -> bool:
        """Whether the request's front may try the endpoint."""
        return endpoint not in self.until.get(front_of(request), ())

    def lost(self, request: RequestId, endpoint: EndpointId, now: float) -> bool:
        """Note that the request's front could not connect to the endpoint; return whether that made it `limited`."""
        was_limited = self.limited(request) is not None
        self.until.setdefault(front_of(request), {})[endpoint] = now + TUNING.unreached
        self._plan()
        return not was_limited

    def found(self, endpoint: EndpointId) -> None:
        """Let every front try an endpoint that came up."""
        self._keep(lambda name, _: name != endpoint)

    def pass_time(self, now: float) -> None:
        """Let fronts try again what is due."""
        self._keep(lambda _, until: until > now)

    def _keep(self, kept: Callable[[EndpointId, float], bool]) -> None:
        for front, until in list(self.until.items()):
            left = {endpoint: due for endpoint, due in until.items() if kept(endpoint, due)}
            if left:
                self.until[front] = left
            else:
                del self.until[front]
        self._plan()

    def _plan(self) -> None:
        self.changes_at = min((due for until in self.until.values() for due in until.values()), default=inf)
