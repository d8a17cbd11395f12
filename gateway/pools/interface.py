"""The interface between requests and the owner of the decisions about them.

Both are in one process, or the owner is behind a socket (`gateway.tier`). A front asks for admission, and reports what
its requests see of an endpoint; the owner decides, and says how endpoints fare.
"""

from collections.abc import Collection
from typing import Protocol

from gateway.admission.commands import Dispatch, Reject
from gateway.admission.events import Arrived, EndpointId, RequestId, Verdict
from gateway.admission.explanation import Explanation
from gateway.endpoints.identity import Identity


class RejectedError(Exception):
    """The core refused the request. `command` has the outcome and when to retry."""

    def __init__(self, command: Reject) -> None:
        super().__init__(command.outcome)
        self.command = command


class Admission(Protocol):
    """Admission to the endpoints of one model."""

    async def admit(self, arrival: Arrived) -> Dispatch:
        """Wait until the request may go to an endpoint.

        Cancelling gives up its place in the queue. After a return the caller owes one `finish` or `readmit`.

        Raises:
            RejectedError: it was refused.
        """
        ...

    async def readmit(self, request: RequestId, *, busy: bool) -> Dispatch:
        """Give a dispatched request back, unanswered, and wait for another dispatch.

        Raises:
            RejectedError: it gets none. The request has ended.
        """
        ...

    def progress(self, request: RequestId, generated: int) -> None:
        """Note a request's generated tokens. The next batch tells the core if that changes its account."""
        ...

    def finish(self, request: RequestId, verdict: Verdict, completion_tokens: int | None = None) -> None:
        """Report that a dispatched request has left its endpoint."""
        ...

    async def explain(self, arrival: Arrived) -> Explanation:
        """Decision about a request if it arrived now, and its reasons. Changes nothing."""
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
        prompt_tokens: int,
        *,
        streams: bool = True,
        brought: bool = False,
        started: bool = False,
    ) -> None:
        """Note a request sent to it; see `gateway.endpoints.silence.Progress.dispatched`."""
        ...

    def progressed(self, requests: Collection[RequestId]) -> None:
        """Note the requests whose tokens were seen since the last call."""
        ...

    def finished(self, request: RequestId, *, delivering: bool = False) -> None:
        """Note that a request has left it; see `gateway.endpoints.silence.Progress.finished`."""
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

    def gone(self, endpoint: EndpointId) -> None:
        """The endpoint is no longer configured, and has no requests."""
        ...

    def evacuate(self, endpoint: EndpointId) -> None:
        """The endpoint is down or hangs: move its unanswered requests elsewhere."""
        ...

    def expire(self, requests: Collection[RequestId]) -> None:
        """These requests were silent for too long: end them, and do not try them elsewhere."""
        ...
