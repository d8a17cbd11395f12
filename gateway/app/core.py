"""The owner of the decisions, as one front sees it: in this process (`together`), or behind a socket (`apart`)."""

from collections.abc import Mapping
from typing import Protocol

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.merged import Figures
from gateway.ops.state import Deciding
from gateway.pools.admission import Admission
from gateway.pools.interface import Watch


class Core(Deciding, Protocol):
    """All that a front asks of the owner."""

    def start(self) -> None:
        """Begin."""
        ...

    async def settled(self) -> None:
        """Wait until the endpoints that answer are known."""
        ...

    @property
    def ready(self) -> bool:
        """Whether somebody decides."""
        ...

    def admission(self, model: str) -> Admission:
        """Admission to the endpoints of a model that is served."""
        ...

    def watch(self, endpoint: EndpointId) -> Watch:
        """The watch over an endpoint."""
        ...

    def forget(self, endpoint: EndpointId) -> bool:
        """Forget an endpoint that is not configured any more; False if the owner knows it, and says when it is gone."""
        ...

    def tell_awaited(self, ages: Mapping[str, float]) -> None:
        """Say for engines of which models requests wait here, and how long the oldest has, in seconds."""
        ...

    def statuses(self) -> list[EndpointStatus]:
        """The present status of each endpoint, for a supervisor; empty if the owner tells it by itself."""
        ...

    async def exposition(self, *, openmetrics: bool) -> bytes:
        """The text of `/metrics`, of all processes."""
        ...

    async def figures(self) -> Figures:
        """What is counted and measured in this process."""
        ...

    def go_by(self, settings: Settings, endpoints: Mapping[EndpointId, Access]) -> None:
        """Put other settings in force."""
        ...

    def leave(self) -> None:
        """Refuse what waits here, and take no new requests."""
        ...

    async def stop(self) -> None:
        """Stop everything."""
        ...
