"""The watch over an endpoint, as a front has it: the owner keeps the real one."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from gateway.admission.events import EndpointId, RequestId
from gateway.tier.frames import Failed, Stepped, Unwatched, Watched


class RemoteWatch:
    """The watch over an endpoint, which the owner keeps; see `Watch`.

    Attributes:
        on_trial: as the owner said last.
        keeps: as the owner said last.
    """

    def __init__(self, endpoint: EndpointId, send: Callable[[msgspec.Struct], None]) -> None:
        self._endpoint = endpoint
        self._send = send
        self._watched: dict[RequestId, Watched] = {}
        self.on_trial = False
        self.keeps = True

    @property
    def watched(self) -> Mapping[RequestId, Watched]:
        """The requests on it, to declare to the next owner."""
        return self._watched

    def dispatched(
        self,
        request: RequestId,
        prompt_tokens: int | None,
        *,
        streams: bool = True,
        evacuated: bool = False,
        started: bool = False,
    ) -> None:
        """See `Watch.dispatched`."""
        passing = prompt_tokens is None
        watched = Watched(self._endpoint, request, prompt_tokens or 0, streams, evacuated, started, passing)
        self._watched[request] = watched
        self._send(watched)

    def progressed(self, requests: Collection[RequestId]) -> None:
        """See `Watch.progressed`. Only first tokens are told one by one."""
        started = []
        for request in requests:
            watched = self._watched.get(request)
            if watched is not None and not watched.started:
                watched.started = True
                started.append(request)
        self._send(Stepped(self._endpoint, started))

    def finished(self, request: RequestId, *, delivering: bool = False) -> None:
        """See `Watch.finished`."""
        if self._watched.pop(request, None) is not None:
            self._send(Unwatched(self._endpoint, request, delivering))

    def failed(self, reason: str, *, aborted: bool = False, dead: bool = False) -> None:
        """See `Watch.failed`."""
        self._send(Failed(self._endpoint, reason, aborted, dead))
