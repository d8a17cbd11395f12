"""The owner of the decisions in another process of this machine."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.admission.events import EndpointId
from gateway.app.opened import Access
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.merged import own_alone, packed
from gateway.ops.metrics import Metrics, exposed
from gateway.ops.state import Decided
from gateway.pools.admission import Admission, Progressed
from gateway.pools.interface import Follower, Watch
from gateway.runtime.background import Background
from gateway.tier.link import Link


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a front among others.

    Attributes:
        front: its number, the upper bits of its requests' ids. No front had it before.
        owner: the unix socket at which the owner listens.
        key: of the hashes of bodies and prefixes, the same at all fronts.
    """

    front: int
    owner: Path
    key: bytes


class Apart:
    """The owner behind a unix socket. See `gateway.app.core.Core`.

    Args:
        place: of this front.
        follower: the front.
        clock: monotonic seconds.
        progressed: called with each batch of progress.
        metrics: of this process.
        settings: those in force.
    """

    def __init__(
        self,
        place: Place,
        follower: Follower,
        *,
        clock: Callable[[], float],
        progressed: Progressed,
        metrics: Metrics,
        settings: Callable[[], Settings],
    ) -> None:
        self._front = str(place.front)
        self._background = Background()
        self._metrics = metrics
        self._link = Link(
            place.front,
            functools.partial(_connect, place.owner),
            follower,
            clock=clock,
            progressed=progressed,
            patience=lambda: settings().admission.queue.no_endpoint_ttl,
            figures=lambda: packed(metrics.figures()),
        )

    def start(self) -> None:
        """Connect, and again after each loss."""
        self._background.spawn("link to the owner", self._link.run)

    async def settled(self) -> None:
        """Wait until the owner has been reached."""
        await self._link.connected.wait()

    def admission(self, model: str) -> Admission:
        """Admission to the endpoints of a model."""
        return self._link.admission(model)

    def watch(self, endpoint: EndpointId) -> Watch:
        """The watch over an endpoint."""
        return self._link.watch(endpoint)

    def statuses(self) -> list[EndpointStatus]:
        """Nothing: the owner tells the supervisor."""
        return []

    async def exposition(self) -> bytes:
        """The text of `/metrics`; while there is no owner, without what is summed over all processes.

        A part of a sum would look like a restart, after which Prometheus adds the whole sum again.
        """
        if self._link.connected.is_set():
            with contextlib.suppress(TimeoutError):
                return await self._link.exposition()
        return exposed(own_alone(self._metrics.figures()))

    async def decided(self) -> Decided:
        """See `gateway.ops.state.Deciding`."""
        decided = await self._link.decided()
        tier = decided.tier.model_copy(update={"role": "front", "id": self._front})
        return decided.model_copy(update={"tier": tier})

    async def drain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._link.drain(endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._link.undrain(endpoint_id)

    def go_by(self, settings: Settings, endpoints: Mapping[EndpointId, Access]) -> None:
        """Nothing: the owner is told the settings by itself."""

    def leave(self) -> None:
        """Refuse what waits here."""
        self._link.leave()

    async def stop(self) -> None:
        """Leave the owner."""
        await self._link.leave_figures()
        self._link.close()
        await self._background.stop()


async def _connect(path: Path, protocol: Callable[[], asyncio.Protocol]) -> None:
    await asyncio.get_running_loop().create_unix_connection(protocol, str(path))
