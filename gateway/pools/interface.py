"""The interface between requests and the owner of the decisions about them.

Both are in one process, or the owner is behind a socket (`gateway.tier`). A front asks for admission, and reports what
its requests see of an endpoint; the owner decides, and says how endpoints fare.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, EndpointId, Event, RequestId
from gateway.admission.explanation import Explanation
from gateway.admission.snapshot import Turn
from gateway.endpoints.identity import Identity


class Decider(Protocol):
    """The core of one model, as a front asks it."""

    def handle(self, event: Event) -> None:
        """Take what happened to a request of the front. Decisions come back to the front's `Asker`."""
        ...

    async def explained(self, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now, and its reasons. Changes nothing."""
        ...

    async def turn(self, request: RequestId) -> Turn | None:
        """Turn of a waiting request; None if it is not known. Raises TimeoutError."""
        ...


class Asker(Protocol):
    """A front, as the core of a model answers it."""

    def decided(self, command: Dispatch | Reject) -> bool:
        """Pass on a decision; False if nobody waits for it any more, so that no engine will see the request."""
        ...

    def want(self, next_reports: Mapping[RequestId, float], *, everything: bool) -> None:
        """Note the token counts at which the core wants to hear of requests again.

        `everything`: it wants every count for now. See `AdmissionController.next_reports` and `aborting`.
        """
        ...

    def renew(self) -> None:
        """Tell every count now: an endpoint came up, and its block size may have changed."""
        ...


class Watch(Protocol):
    """The watch over one endpoint, which hears from requests what they see of it."""

    @property
    def on_trial(self) -> bool:
        """Whether it gets one request at a time until there is progress."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether its requests may still be answered although it takes no new ones."""
        ...

    def dispatched(
        self,
        request: RequestId,
        prompt_tokens: int | None,
        *,
        streams: bool = True,
        evacuated: bool = False,
        started: bool = False,
    ) -> None:
        """Note a request sent to it; see `gateway.endpoints.silence.SilenceMeter.dispatched`."""
        ...

    def progressed(self, requests: Collection[RequestId]) -> None:
        """Note the requests whose tokens were seen since the last call."""
        ...

    def finished(self, request: RequestId, *, delivering: bool = False) -> None:
        """Note that a request has left it; see `gateway.endpoints.silence.SilenceMeter.finished`."""
        ...

    def failed(self, reason: str, *, aborted: bool = False, dead: bool = False) -> None:
        """Note a failed request; see `gateway.endpoints.monitor.EndpointMonitor.failed`."""
        ...


class Follower(Protocol):
    """A front, which is told what it must know of the endpoints. Must not block."""

    def up(self, endpoint: EndpointId, model: str, identity: Identity) -> None:
        """The endpoint takes traffic for this model from now on, or already does and its identity changed."""
        ...

    def down(self, endpoint: EndpointId) -> None:
        """The endpoint takes no new requests."""
        ...

    def starts(self, endpoint: EndpointId, ready_in: float | None, *, failed: bool) -> None:
        """An engine that does not run is to be up in so many seconds; None: not known, or it is up.

        `failed`: it does not start, and those that wait for it wait in vain.
        """
        ...

    def gone(self, endpoint: EndpointId) -> None:
        """The endpoint is no longer configured, and has no requests."""
        ...

    def evacuate(self, endpoint: EndpointId) -> None:
        """The endpoint is down or hangs: move its unanswered requests elsewhere."""
        ...

    def expire(self, requests: Collection[RequestId]) -> None:
        """These requests were silent for too long: end them, and do not try them elsewhere."""
        ...
