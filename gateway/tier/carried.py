"""The requests that a front carries, and their declaration to the next owner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gateway.admission.events import Arrived, Back, Declared, EndpointId, RequestId
from gateway.tier.frames import Declares, Watched, weight

PART = 4_000
"""Weight at which a part is full: about 2 ms of the owner's loop (see `weight`)."""
WATCHED = 10
"""What a watched request weighs."""


class Carried:
    """A request of this front, which waits or is on an endpoint."""

    __slots__ = ("arrival", "avoid", "behind", "came_at", "endpoint", "failures", "generated", "model", "waits_since")

    def __init__(self, model: str, arrival: Arrived, now: float) -> None:
        self.model = model
        self.arrival = arrival
        self.came_at = self.waits_since = now
        self.endpoint: EndpointId | None = None
        """The one it is on; None while it waits."""
        self.generated = 0
        self.behind = False
        """Whether its client was behind at any time."""
        self.failures = arrival.failures
        self.avoid: EndpointId | None = None
        """The endpoint that failed on it last, or lacks what it names."""

    def come_back(self, why: Back, now: float) -> None:
        """Its endpoint gives it back."""
        if why in {Back.FAILED, Back.LACKING}:
            self.avoid = self.endpoint
        if why is Back.FAILED:
            self.failures += 1
            self.waits_since = now
        self.endpoint, self.generated, self.behind = None, 0, False

    def as_of(self, now: float, charged_until: float) -> Arrived:
        """Its arrival, as an owner is to see it that does not know it.

        `charged_until`: what came until then, an owner charged to its tenant.
        """
        waited, charged = now - self.waits_since, self.came_at <= charged_until
        return replace(self.arrival, waited=waited, failures=self.failures, avoid=self.avoid, charged=charged)


class Declaration:
    """All that a front carries, told in parts, so that neither side's loop is held up.

    What happens meanwhile to a request that is not declared yet is not told: its declaration says how it is then.

    Args:
        carried: the requests of the front, which come and go meanwhile.
        watched: what is watched on each endpoint, which comes and goes, too.
        generated: the latest count of a carried request's tokens.
        clock: monotonic seconds.
        charged_until: see `Carried.as_of`.
    """

    def __init__(
        self,
        carried: Mapping[RequestId, Carried],
        watched: Sequence[Mapping[RequestId, Watched]],
        generated: Callable[[RequestId], int],
        clock: Callable[[], float],
        charged_until: float,
    ) -> None:
        self._carried = carried
        self._generated = generated
        self._clock = clock
        self._charged_until = charged_until
        # What is in flight comes first: it holds room that others must not be sent to.
        requests = [request for request, known in carried.items() if known.endpoint is not None]
        requests += [request for request, known in carried.items() if known.endpoint is None]
        self._undeclared = set(requests)
        self._requests = iter(requests)
        self._watched = ((there, request) for there in watched for request in list(there))

    def __contains__(self, request: RequestId) -> bool:
        """Whether it has yet to be declared."""
        return request in self._undeclared

    def part(self) -> Declares:
        """The next part."""
        part, weighs = Declares([], [], [], last=False), 0
        for request in self._requests:
            self._undeclared.discard(request)
            known = self._carried.get(request)
            if known is None:  # it has ended meanwhile
                continue
            arrival = known.as_of(self._clock(), self._charged_until)
            if known.endpoint is None:
                part.waiting.append((known.model, arrival))
            else:
                declared = Declared(arrival, known.endpoint, self._generated(request), known.behind)
                part.flights.append((known.model, declared))
            weighs += weight(arrival)
            if weighs >= PART:
                return part
        for there, request in self._watched:
            if (watched := there.get(request)) is not None:
                part.watched.append(watched)
            weighs += WATCHED
            if weighs >= PART:
                return part
        part.last = True
        return part
