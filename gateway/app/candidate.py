"""The process that may decide for all gateways of a tier: it stands for election, and reigns if elected."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import MappingProxyType

import structlog

from gateway.app.deciding import DecidingProcess
from gateway.app.named_files import read_named_files
from gateway.app.parent import Parent
from gateway.app.reign import Reign
from gateway.app.telemetry import Exports
from gateway.config.engine import Launched
from gateway.config.errors import ConfigurationError
from gateway.config.redis_url import redis_address
from gateway.config.reloadable import SettingsChange
from gateway.config.settings import Settings
from gateway.endpoints.listener import EndpointStatus
from gateway.ops.merged import Figures
from gateway.runtime.background import Background
from gateway.tier.campaign import Campaign, tier_state
from gateway.tier.channel import Entrance
from gateway.tier.claims import claim
from gateway.tier.election import Election, Standing, View
from gateway.tier.epoch import Epoch
from gateway.tier.guide import BEAT, Follow, Post, guide_path
from gateway.tier.hall import Hall
from gateway.tier.key_file import mark, tier_key
from gateway.tier.redis_lease import RedisLease
from gateway.tier.seal import Peer, Role

_log = structlog.get_logger("kvgate.tier")


class Candidate(DecidingProcess):
    """Built from settings, started, changed, and stopped once its own fronts have gone.

    Args:
        settings: all of them.
        listening: the unix socket for the fronts of this machine.
        launched: the engines that gateways of the tier launch.
        clock: monotonic seconds.

    Raises:
        ConfigurationError: a file that the settings name cannot be used, or a variable of OpenTelemetry.
    """

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        launched: Launched = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.parent = Parent()
        self._listening = listening
        self._launched = launched
        self._clock = clock
        tier, key = settings.tier, tier_key(settings.tier)
        if key is None or tier.redis is None or tier.advertise is None:
            raise ConfigurationError("tier: it needs `redis`, `advertise` and `key_file`")
        self._key = key
        self._address = tier.advertise
        found = read_named_files(settings)
        self._endpoints = found.endpoints
        name = secrets.token_hex(8)
        self._election = Election(
            name,
            tier.advertise,
            mark(key),
            members=tier.members,
            fallback_share=tier.fallback_share,
            now=clock(),
        )
        address = redis_address(tier.redis.get_secret_value())
        lease = RedisLease(address, name, f"{tier.advertise} {mark(key)}", self._election.terms.timeout)
        self._campaign = Campaign(self._election, lease, self._changed, clock)
        self._post = Post(guide_path(Path(listening.getsockname())), self._followed)
        self._said = claim(Role.OWNER, key, settings, found.templates)
        """To whoever comes: strangers, too, so it is made once."""
        self._entrance = Entrance(key, lambda: self._said, self._welcome)
        self._background = Background()
        self._exports = Exports(self._figures, "owner")
        self._reign: Reign | None = None
        self._epoch: Epoch | None = None
        """Of the reign."""
        self._wanted: Epoch | None = None
        """Of the reign that there is to be."""
        self._turn = asyncio.Event()
        self._accounting: asyncio.Task[None] | None = None
        """Reads the gauges for the reign, until they were read or it is over."""
        self._ending: asyncio.Future[None] | None = None
        """The end of the reign before, which writes files: whoever stops waits for it."""
        self._servers: list[asyncio.Server] = []

    @property
    def active(self) -> int:
        """Fronts of this machine that are connected."""
        return 0 if self._reign is None else self._reign.hall.own_fronts

    @property
    def endpoints(self) -> list[EndpointStatus]:
        """The present status of each endpoint, if it decides."""
        return [] if self._reign is None else self._reign.statuses

    async def start(self, settle: float = 0.0) -> None:
        """Take fronts, and stand for election. `settle` is for a front: fronts wait by themselves."""
        del settle
        self._exports.start()
        await self._post.open()
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._admit, sock=self._listening))
        port = int(self._address.rpartition(":")[2])
        try:
            self._servers.append(await self._entrance.open("", port))
        except OSError as error:
            why = error.strerror if error.errno is None else os.strerror(error.errno)  # asyncio says it at length
            raise ConfigurationError(f"tier.advertise: cannot listen on port {port}: {why}") from None
        self._background.spawn("reigns", self._succeed)
        self._background.spawn("word to the fronts", self._tell_often)
        self._campaign.start()
        _log.info("standing for election", at=self._address, id=self._election.me)

    async def change(self, settings: Settings) -> SettingsChange:
        """Put other settings in force, as far as they can change.

        Raises:
            ConfigurationError: a file that the settings name cannot be used. Nothing was changed.
        """
        change = SettingsChange.between(self.settings, settings)
        found = await asyncio.to_thread(read_named_files, change.settings)
        self.settings, self._endpoints = change.settings, found.endpoints
        self._said = claim(Role.OWNER, self._key, change.settings, found.templates)
        if self._reign is not None:
            self._reign.go_by(change.settings, found.endpoints)
        return change

    async def stop(self) -> None:
        """Give the lease back, and close everything."""
        if self._reign is not None:
            self._reign.leave()
        await self._campaign.stop()
        await self._background.stop()
        for server in self._servers:
            server.close()
        self._post.close()
        self._entrance.close()
        if self._ending is not None:
            await asyncio.wait([self._ending])
        if self._reign is not None:
            await self._reign.end()
        _log.info("stopped")
        await self._exports.stop()

    async def _figures(self) -> Figures:
        return [] if self._reign is None else await self._reign.figures()

    # The election.

    def _changed(self, view: View) -> None:
        """Stop deciding at once where it must not any more; all else is done by `_succeed`."""
        lapsed = view.standing is Standing.LAPSED
        self._wanted = view.epoch if view.decides else self._epoch if lapsed else None
        self._turn.set()
        if self._reign is not None and self._epoch is not None:
            if self._wanted == self._epoch:
                self._reign.restrict(view.share if view.decides else 0.0)
            else:
                self._epoch = None
                self._reign.leave()
        self._tell()

    def _check(self) -> None:
        """Before each event of a core: a process that was stopped may have no right to decide any more."""
        self._campaign.check()

    async def _succeed(self) -> None:
        """End the reign that is over, and begin the next."""
        self._turn.set()  # a reign that could not begin is tried again
        while True:
            await self._turn.wait()
            self._turn.clear()
            if self._reign is not None and self._epoch is None:
                over, self._reign = self._reign, None
                if self._accounting is not None:
                    self._accounting.cancel()
                self._ending = asyncio.ensure_future(over.end())
                await asyncio.shield(self._ending)
            if self._reign is None and (epoch := self._wanted) is not None:
                reigning = _Reigning(self._campaign, epoch)
                self._reign = Reign(
                    self.settings,
                    self._endpoints,
                    self._launched,
                    None,
                    election=reigning,
                    before=self._check,
                    clock=self._clock,
                )
                self._epoch = epoch
                view = self._campaign.view
                self._reign.restrict(view.share if view.decides else 0.0)
                self._reign.begin()
                self._accounting = self._background.spawn("gauges of the engines", self._account)
            self._tell()

    async def _account(self) -> None:
        """Count what still runs for gateways that are gone by the engines' gauges, once these were read."""
        epoch, reign = self._epoch, self._reign
        if reign is not None:
            await reign.gauged()
            if self._epoch == epoch:
                self._campaign.accounted()
                reign.hall.look()

    # The fronts.

    @property
    def _hall(self) -> Hall | None:
        """Where fronts come in; None while it does not decide."""
        return None if self._epoch is None or self._reign is None else self._reign.hall

    def _admit(self) -> asyncio.Protocol:
        return _Closed() if self._hall is None else self._hall.line()

    def _welcome(self, peer: Peer) -> asyncio.Protocol:
        return _Closed() if self._hall is None else self._hall.line(peer.claim.member)

    def _followed(self, epoch: Epoch) -> None:
        self._campaign.heard(epoch)
        self._campaign.followed()

    async def _tell_often(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(BEAT)

    def _tell(self) -> None:
        view = self._campaign.view
        here = self._hall is not None
        address = None if here or view.address == self._address else view.address
        tier = tier_state(self._election, self._clock())
        shown, others = tier.model_dump_json().encode(), self._election.others
        self._post.tell(Follow(here, address, view.ready, shown, others, view.unreachable))


class _Reigning:
    """See `gateway.tier.hall.Reign`."""

    def __init__(self, campaign: Campaign, epoch: Epoch) -> None:
        self.epoch = epoch
        self._campaign = campaign

    def heard(self, epoch: Epoch) -> None:
        self._campaign.heard(epoch)

    def connected(self, machines: Collection[str], whole: Collection[str]) -> None:
        self._campaign.connected(machines, whole)

    @property
    def complete(self) -> bool:
        return self._campaign.complete


class _Closed(asyncio.Protocol):
    """A connection that nobody takes: the owner is elsewhere."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        transport.close()
