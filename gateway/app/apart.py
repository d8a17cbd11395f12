"""The owner of the decisions in another process of this machine."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.merged import Figures, own_alone, packed
from gateway.ops.metrics import Metrics, exposed, exposed_tier
from gateway.ops.pictures.digest import Digest
from gateway.ops.pictures.picture import Picture
from gateway.ops.state import Decided
from gateway.pools.admission import Admission, Progressed
from gateway.pools.interface import Follower, Watch
from gateway.pools.launcher import Launcher
from gateway.runtime.background import Background
from gateway.tier.channel import connect
from gateway.tier.claims import claim
from gateway.tier.epoch import Epoch
from gateway.tier.fence import Allegiance
from gateway.tier.frames import Saw
from gateway.tier.guide import Guide, guide_path
from gateway.tier.key_file import tier_key
from gateway.tier.owner_link import Link
from gateway.tier.seal import Role


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """What makes a front one of several.

    Attributes:
        number: the upper bits of its requests' ids. No front had it before.
        owner: the unix socket at which the owner listens.
        hash_key: of the hashes of bodies and prefixes, the same at all fronts.
    """

    number: int
    owner: Path
    hash_key: bytes


Templates = Callable[[], Mapping[str | None, str | None]]
"""Texts of chat templates, by the models' settings."""
OWNERLESS = 8.0
"""Seconds for which a request waits for an owner in a tier. An election takes about 2; until each decides for itself it
takes 3.8, and one more until all fronts have declared. The rest is for a busy machine."""
TOLD = 1.0
"""Seconds between two words to the owner of what ended here."""


class Apart:
    """The owner behind a unix socket. See `gateway.app.core.Core`.

    Args:
        spec: of this front.
        follower: the front.
        clock: monotonic seconds.
        progressed: called with each batch of progress.
        metrics: of this process.
        settings: those in force.
        templates: texts of their chat templates.
        digest: takes what ended at this front.
        parent: in a tier, launches engines for the owner.
    """

    def __init__(
        self,
        spec: FrontSpec,
        follower: Follower,
        *,
        clock: Callable[[], float],
        progressed: Progressed,
        metrics: Metrics,
        settings: Callable[[], Settings],
        templates: Templates,
        digest: Callable[[], Digest],
        parent: Launcher,
    ) -> None:
        self._digest = digest
        self._front = str(spec.number)
        self._background = Background()
        self._metrics = metrics
        here = functools.partial(_connect, spec.owner)
        allegiance = Allegiance()
        self._guide = _guide(spec, here, settings, templates, turned=self._turned, following=self._following)
        self._allegiance = allegiance
        self._link = Link(
            spec.number,
            here if self._guide is None else self._guide.connect,
            follower,
            clock=clock,
            progressed=progressed,
            patience=lambda: self._patience(settings()),
            figures=lambda: asyncio.to_thread(lambda: packed(metrics.figures())),
            unreachable=lambda: self._guide is not None and self._guide.unreachable,
            keyed=lambda endpoint: self._guide is None or _keyed(settings(), endpoint),
            allegiance=None if self._guide is None else allegiance,
            fronts=workers if isinstance(workers := settings().server.workers, int) else 1,
            parent=parent,
        )

    def start(self) -> None:
        """Connect, and again after each loss."""
        self._background.spawn("link to the owner", self._link.run)
        self._background.spawn("what ended here", self._tell_ended)
        if self._guide is not None:
            self._background.spawn("whom to follow", self._guide.run)

    @property
    def ready(self) -> bool:
        """Whether an owner decides for this front, or did a moment ago."""
        return self._guide is None or self._guide.ready

    async def _tell_ended(self) -> None:
        """Tell the owner what ended here. What ends while there is none waits for the next."""
        while True:
            await asyncio.sleep(TOLD)
            if self._link.connected.is_set() and (digest := self._digest()).models:
                self._link.send(Saw(digest))

    def _turned(self) -> None:
        self._link.turn()

    def _following(self) -> Epoch | None:
        return self._allegiance.epoch if self._link.in_touch else None

    def _patience(self, settings: Settings) -> float:
        """Seconds for which a request waits for an owner."""
        ttl = settings.admission.queue.no_endpoint_ttl
        return ttl if self._guide is None else min(ttl, OWNERLESS)

    async def settled(self) -> None:
        """Wait until the owner has been reached."""
        await self._link.connected.wait()

    def admission(self, model: str) -> Admission:
        """Admission to the endpoints of a model."""
        return self._link.admission(model)

    def watch(self, endpoint: EndpointId) -> Watch:
        """The watch over an endpoint."""
        return self._link.watch(endpoint)

    def forget(self, endpoint: EndpointId) -> bool:
        """See `gateway.app.core.Core`."""
        return self._link.forget(endpoint)

    def tell_awaited(self, ages: Mapping[str, float]) -> None:
        """Say that requests wait here for engines, also to the next owner."""
        self._link.tell_awaited(ages)

    def statuses(self) -> list[EndpointStatus]:
        """Nothing: the owner tells the supervisor."""
        return []

    async def exposition(self, *, openmetrics: bool) -> bytes:
        """The text of `/metrics`; while there is no owner, without what is summed over all processes.

        A part of a sum would look like a restart, after which Prometheus adds the whole sum again.
        """
        tier = None if self._guide is None else self._guide.tier
        of_tier = b"" if tier is None else exposed_tier(tier)
        if self._link.connected.is_set():
            with contextlib.suppress(TimeoutError):
                return of_tier + await self._link.questions.exposition(openmetrics=openmetrics)
        figures = own_alone(await self.figures())
        return of_tier + await asyncio.to_thread(exposed, figures, openmetrics=openmetrics)

    async def figures(self) -> Figures:
        """What this front counts; the owner exports what it measures."""
        return await asyncio.to_thread(self._metrics.figures)

    async def decided(self) -> Decided:
        """See `gateway.ops.state.Deciding`."""
        decided = await self._link.questions.decided()
        seen = None if self._guide is None else self._guide.tier
        if seen is None:
            tier = decided.tier.model_copy(update={"role": "front", "id": self._front})
        else:  # the role of the whole gateway
            tier = seen.model_copy(update={"members": decided.tier.members})
        return decided.model_copy(update={"tier": tier})

    async def picture(self, after: float) -> Picture:
        """See `gateway.ops.state.Deciding`."""
        return await self._link.questions.picture(after)

    async def drain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._link.questions.drain(endpoint_id)

    async def undrain(self, endpoint_id: str) -> None:
        """See `gateway.ops.state.Deciding`."""
        await self._link.questions.undrain(endpoint_id)

    async def give(self, model: str, adapter: str, path: str | None) -> None:
        """See `Deciding.give`."""
        await self._link.questions.give(model, adapter, path)

    def go_by(self, settings: Settings, endpoints: Mapping[EndpointId, Access]) -> None:
        """Look at the keys of endpoints. The owner is told the settings by itself."""
        del settings, endpoints  # the front has put them in force
        self._link.keys_changed()

    def leave(self) -> None:
        """Refuse what waits here."""
        self._link.leave()

    async def stop(self) -> None:
        """Leave the owner."""
        await self._link.leave_figures()
        self._link.close()
        await self._background.stop()


def _guide(
    spec: FrontSpec,
    here: Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]],
    settings: Callable[[], Settings],
    templates: Templates,
    *,
    turned: Callable[[], None],
    following: Callable[[], Epoch | None],
) -> Guide | None:
    """What says whom to follow, in a tier."""
    key = tier_key(settings().tier)
    if key is None:
        return None

    async def elsewhere(host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> object:
        said = claim(Role.FRONT, key, settings(), templates())
        return await connect(host, port, protocol, key=key, claim=said)

    return Guide(guide_path(spec.owner), here=here, elsewhere=elsewhere, turned=turned, following=following)


def _keyed(settings: Settings, endpoint: EndpointId) -> bool:
    return any(there.keyed for model in settings.models for there in model.endpoints if there.address == endpoint)


async def _connect(path: Path, protocol: Callable[[], asyncio.Protocol]) -> None:
    await asyncio.get_running_loop().create_unix_connection(protocol, str(path))
