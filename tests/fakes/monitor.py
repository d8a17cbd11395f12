"""A monitor that knows what requests are on its endpoint, and of nothing else."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from gateway.admission.events import RequestId


@dataclass
class Monitor:
    """Of an endpoint, at one owner."""

    probed: asyncio.Event = field(default_factory=asyncio.Event)
    serving: bool = False
    on_trial: bool = False
    keeps: bool = False
    drained: bool = False
    keyed: bool = False
    requests: set[RequestId] = field(default_factory=set)

    def dispatched(self, request: RequestId, *_: object, **__: object) -> None:
        self.requests.add(request)

    def progressed(self, requests: Collection[RequestId]) -> None:
        pass

    def finished(self, request: RequestId, **__: object) -> None:
        self.requests.discard(request)

    def failed(self, *_: object, **__: object) -> None:
        pass
