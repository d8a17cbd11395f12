"""The guide of a machine's fronts: its candidate tells them which owner to follow, over a unix socket of their own.

The candidate asks Redis. Its fronts do not: they hear from it who decides, here or on another machine, and tell it
while they are in touch with an owner elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from gateway.ops.state import TierState
from gateway.tier.channel import UnprovenError
from gateway.tier.epoch import Epoch
from gateway.tier.line import Line

RETRY = 0.1
"""Seconds between two tries to reach the candidate, and of an owner where there is no candidate to ask."""
BEAT = 0.4
"""Seconds between two words to it."""
OUT_OF_TOUCH = 3
"""Looks in a row, one a beat, after which a front is out of touch with its owner. One that was stopped itself did not
look: its candidate takes the owner for unreachable, but the front may reach it again at once."""
UNPROVEN = 1.0
"""Seconds before the next try with an owner that did not prove itself."""
SAID_EVERY = 60.0
"""Seconds between two lines about an owner that does not prove itself."""
_log = structlog.get_logger("kvgate.tier")


def guide_path(owner: Path) -> Path:
    """The socket at which the fronts of an owner's socket hear whom to follow."""
    return owner.with_name("guide")


class Follow(msgspec.Struct, array_like=True, frozen=True):
    """Whom to follow.

    Attributes:
        here: the owner is the candidate itself, at the socket of fronts.
        address: HOST:PORT of the owner elsewhere; None where none is known.
        ready: whether somebody decides, or did a moment ago.
        tier: a `TierState`, as JSON.
        others: HOST:PORT of each other gateway, where an owner may be when this candidate has died.
        unreachable: an owner lives elsewhere that this machine cannot reach; see `View`.
    """

    here: bool
    address: str | None
    ready: bool
    tier: bytes
    others: tuple[str, ...] = ()
    unreachable: bool = False


class Following(msgspec.Struct, array_like=True, frozen=True):
    """A front is in touch with the owner of this epoch, elsewhere."""

    epoch: tuple[int, str]


_HERE = "here"
_follows: Callable[[bytes], list[Follow]] = msgspec.msgpack.Decoder(list[Follow]).decode
_followings: Callable[[bytes], list[Following]] = msgspec.msgpack.Decoder(list[Following]).decode
Protocols = Callable[[], asyncio.Protocol]


class Post:
    """The candidate's side.

    Args:
        path: of the socket.
        heard: called when a front says which owner it is in touch with.
    """

    def __init__(self, path: Path, heard: Callable[[Epoch], None]) -> None:
        self._path = path
        self._heard = heard
        self._lines: set[Line[Following]] = set()
        self._said: Follow | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Take fronts."""
        self._path.unlink(missing_ok=True)  # of a candidate before this one
        self._server = await asyncio.get_running_loop().create_unix_server(self._line, str(self._path))

    def tell(self, follow: Follow) -> None:
        """Tell all fronts whom to follow."""
        if follow != self._said:
            self._said = follow
            for line in self._lines:
                line.send(follow)

    def close(self) -> None:
        """Leave the fronts."""
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cut()

    def _line(self) -> Line[Following]:
        return Line(_followings, self._take, self._lines.discard, self._greet)

    def _greet(self, line: Line[Following]) -> None:
        self._lines.add(line)
        if self._said is not None:
            line.send(self._said)

    def _take(self, _line: Line[Following], messages: list[Following]) -> None:
        for message in messages:
            self._heard(Epoch(*message.epoch))


class Guide:
    """A front's side. Run `run`.

    Args:
        path: of the candidate's socket.
        here: connects to the owner on this machine.
        elsewhere: connects to the one at a HOST and PORT.
        turned: called when another owner is to be followed.
        following: the epoch of the owner that this front is in touch with now, if there is one.
    """

    def __init__(
        self,
        path: Path,
        *,
        here: Callable[[Protocols], Awaitable[object]],
        elsewhere: Callable[[str, int, Protocols], Awaitable[object]],
        turned: Callable[[], None],
        following: Callable[[], Epoch | None],
    ) -> None:
        self._path = path
        self._here = here
        self._elsewhere = elsewhere
        self._turned = turned
        self._following = following
        self._follow: Follow | None = None
        self._owner: str | None = None
        """The one that it was sent to last."""
        self._said_at = -SAID_EVERY
        self._hears = False
        """Whether there is a candidate."""
        self._missed = 0
        """Looks in a row that found it in touch with no owner."""
        self._tries = 0

    @property
    def ready(self) -> bool:
        """Whether somebody decides for this front."""
        return self._follow is not None and self._follow.ready

    @property
    def unreachable(self) -> bool:
        """Whether an owner lives elsewhere that cannot be reached: there is nothing to wait for."""
        told = self._hears and self._follow is not None and self._follow.unreachable
        return told and self._missed >= OUT_OF_TOUCH

    @property
    def tier(self) -> TierState | None:
        """The tier, as the candidate sees it."""
        return None if self._follow is None else TierState.model_validate_json(self._follow.tier, extra="ignore")

    async def connect(self, protocol: Protocols) -> object:
        """Connect to the owner. While there is no candidate, try the other gateways in turn: its next start takes long.

        Raises:
            OSError: it cannot be reached, or none is known.
        """
        follow = self._follow
        if follow is None or not (follow.here or follow.address or follow.others):
            raise ConnectionError("no owner is known")
        address = None if follow.here else follow.address
        if follow.others and not self._hears:
            self._tries += 1
            address = follow.others[self._tries % len(follow.others)]
            await asyncio.sleep(RETRY)
        elif not follow.here and address is None:
            raise ConnectionError("no owner is known")
        self._owner = address or _HERE
        if address is None:
            return await self._here(protocol)
        host, _, port = address.rpartition(":")
        try:
            return await self._elsewhere(host.strip("[]"), int(port), protocol)
        except UnprovenError as error:
            now = asyncio.get_running_loop().time()
            if now - self._said_at >= SAID_EVERY:
                self._said_at = now
                _log.error("the gateway that decides does not serve this one", reason=str(error))
            await asyncio.sleep(UNPROVEN)  # another key is not mended soon
            raise

    async def run(self) -> None:
        """Listen to the candidate until cancelled. While there is none, the last word of one before it counts."""
        while True:
            await self._listen()
            await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        ended = asyncio.Event()
        line = Line(_follows, self._take, lambda _line: ended.set())
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: line, str(self._path))
        except OSError:
            return
        self._hears = True
        try:
            await self._report(line, ended)
        finally:
            self._hears = False
            line.cut()
        if self._owner == _HERE:  # it has died with its candidate, but the supervisor keeps its socket
            self._turned()

    async def _report(self, line: Line[Follow], ended: asyncio.Event) -> None:
        while not ended.is_set():
            epoch = self._following()
            self._missed = 0 if epoch is not None else self._missed + 1
            if epoch is not None and self._follow is not None and not self._follow.here:
                line.send(Following((epoch.number, epoch.owner)))
            try:
                async with asyncio.timeout(BEAT):
                    await ended.wait()
            except TimeoutError:
                continue

    def _take(self, _line: Line[Follow], messages: list[Follow]) -> None:
        self._follow = follow = messages[-1]
        owner = _HERE if follow.here else follow.address
        if owner is not None and self._owner not in {None, owner}:  # where none is known, the old one may still decide
            self._turned()
