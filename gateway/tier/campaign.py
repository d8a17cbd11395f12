"""One candidate at work: asks Redis on time, and says what changed."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

import structlog

from gateway.ops.state import TierState
from gateway.runtime.background import Background
from gateway.tier.election import Election, Standing, View
from gateway.tier.epoch import Epoch
from gateway.tier.redis_lease import RedisLease, RedisLeaseError

_log = structlog.get_logger("kvgate.tier")


class Campaign:
    """Runs an election.

    Args:
        election: what it knows.
        lease: of the tier.
        changed: called with the view whenever another standing, epoch, owner or readiness is in force.
        clock: monotonic seconds, as in `election`.
    """

    def __init__(
        self,
        election: Election,
        lease: RedisLease,
        changed: Callable[[View], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._election = election
        self._lease = lease
        self._changed = changed
        self._clock = clock
        self._told: object = None
        self._trouble: RedisLeaseError | None = None
        self._early = asyncio.Event()
        self._over = False
        """It asks no more. A cancellation alone may be lost: by `asyncio.wait_for` of Python 3.11, in redis-py."""
        self._background = Background()

    def start(self) -> None:
        """Begin to ask."""
        self._background.spawn("election", self._run)

    async def stop(self) -> None:
        """Decide no more, give the lease back, if it is held, and end."""
        self._over = True
        await self._background.stop()
        self._election.resign(self._clock())
        self._tell()
        try:
            await self._lease.leave()
        except RedisLeaseError as error:
            _log.warning("could not give the lease back: the next owner waits until it is over", reason=str(error))
        await self._lease.close()

    def heard(self, epoch: Epoch) -> None:
        """A front has heard of an epoch."""
        self._election.heard(epoch, self._clock())
        self._tell()
        self._early.set()

    def followed(self) -> None:
        """The fronts of this machine are in touch with an owner on another one."""
        self._election.followed(self._clock())
        self._tell()

    def connected(self, machines: Collection[str], whole: Collection[str]) -> None:
        """The other gateways of which a front has declared all it has; those of which each front has."""
        self._election.connected(machines, whole)
        self._tell()

    @property
    def complete(self) -> bool:
        """Whether these are all that Redis has shown lately."""
        return self._election.complete

    def accounted(self) -> None:
        """The engines' gauges show what was in flight on machines that are gone."""
        self._election.accounted()
        self._tell()

    def check(self) -> None:
        """Say at once if the time to decide is over."""
        self._election.passed(self._clock())
        if not self.may_decide():
            self._tell()

    def may_decide(self) -> bool:
        """Whether this candidate may dispatch at this instant."""
        return self._election.may_decide(self._clock())

    @property
    def view(self) -> View:
        """How the election stands."""
        return self._election.view(self._clock())

    async def _run(self) -> None:
        while not self._over:
            now = self._clock()
            self._election.passed(now)
            self._tell()
            self._early.clear()
            if (wait := self._election.due - now) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._early.wait()
                continue
            await self._ask()
            self._tell()

    async def _ask(self) -> None:
        claim = self._election.claim(self._clock())
        try:
            kept = await self._lease.ask(claim)
        except RedisLeaseError as error:
            self._election.failed(claim, self._clock(), denied=error.denied)
            if self._trouble is None or error.denied > self._trouble.denied:
                _log.error("Redis of the tier cannot be asked", reason=str(error), denied=error.denied)
                self._trouble = error
            return
        if self._trouble is not None:
            _log.info("Redis of the tier answers again", before=str(self._trouble))
            self._trouble = None
        self._election.answered(claim, kept, self._clock())

    def _tell(self) -> None:
        view = self.view
        told = (view.standing, view.decides, view.epoch, view.address, view.ready, view.share, view.stranger)
        if told == self._told:
            return
        self._told = told
        _log.info(
            "standing in the tier",
            standing=view.standing.value,
            epoch=None if view.epoch is None else str(view.epoch),
            at=view.address,
            share=view.share,
            ready=view.ready,
        )
        if view.stranger:
            _log.error("the gateway that decides has another `tier.key_file`", at=view.address)
        self._changed(view)


def tier_state(election: Election, now: float) -> TierState:
    """The election as `/kvgate/state` and `/metrics` show it."""
    view = election.view(now)
    role = "alone" if view.standing is Standing.ALONE else "owner" if view.decides else "front"
    return TierState(
        role=role,
        id=election.me,
        owner=None if view.epoch is None else view.epoch.owner,
        epoch=None if view.epoch is None else view.epoch.number,
        gateways=view.members,
        standing=view.standing.value,
        share=view.share,
        lease_seconds=max(0.0, view.until - now) if view.decides else None,
        redis=view.redis,
    )
