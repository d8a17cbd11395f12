"""A connection between members of a tier on several machines: TCP, sealed with the tier's key.

Only when the other side is proven does it get a protocol, with a transport as over any other connection: a `Line` talks
over a channel as over a unix socket.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

import structlog

from gateway.tier.seal import NONCE, Claim, DisagreementError, Peer, SealError, Session, SharedKey, agreed

PROVEN_WITHIN = 3.0
"""Seconds for the other side to prove itself."""
MOST_UNPROVEN = 256
"""Connections that are not proven yet. For each one more the oldest is cut, so silent strangers keep no member out: it
proves itself within two round trips."""
LOGGED_EVERY = 60.0
"""Seconds between two lines about strangers, or about one member, so that they fill no disk."""
_BACKLOG = 100
"""Connections that are accepted in one turn of asyncio's event loop: less than `MOST_UNPROVEN`, so that each has a turn
to be heard."""
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""After how many silent seconds the kernel asks whether the other side is there, how often, and how many times."""
_log = structlog.get_logger("kvgate.tier")


class UnprovenError(ConnectionError):
    """Somebody answered who is no member of this tier, or one that this member cannot talk to."""


class Sealed(asyncio.Transport):
    """A transport whose bytes are sealed on their way."""

    def __init__(self, transport: asyncio.Transport, session: Session) -> None:
        super().__init__()
        self._transport = transport
        self._session = session

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        """Send bytes."""
        self._transport.write(self._session.seal(bytes(data)))

    def get_write_buffer_size(self) -> int:
        """Bytes that the other side has yet to take."""
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        """End the connection once all that was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()


class Keeper(Protocol):
    """Who a channel belongs to until it is proven."""

    def begun(self, channel: "Channel") -> None:
        """The connection is there."""
        ...

    def proven(self, channel: "Channel", peer: Peer) -> asyncio.Protocol:
        """The other side is a member. Return what talks to it."""
        ...

    def failed(self, channel: "Channel", why: Exception | None) -> None:
        """The connection has ended before that; `why` is None if the other side ended it."""
        ...


class Channel(asyncio.Protocol):
    """One side of a connection.

    Args:
        keeper: its.
        session: of this connection.
        claim: what this side says of itself.
    """

    def __init__(self, keeper: Keeper, session: Session, claim: Claim) -> None:
        self.address = "?"
        """Of the other side."""
        self._keeper = keeper
        self._session = session
        self._claim = claim
        self._why: Exception | None = None
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle

    def cut(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)
        if isinstance(name := transport.get_extra_info("peername"), tuple):
            self.address = f"{name[0]}:{name[1]}"
        _tune(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(PROVEN_WITHIN, self._late)
        self._keeper.begun(self)
        if opening := self._session.opening:
            self._transport.write(opening)

    def data_received(self, data: bytes) -> None:
        """Bytes of the other side have come."""
        if self._why is not None:
            return
        try:
            answer, said = self._session.feed(data)
        except SealError as error:
            if self._protocol is not None:
                _log.error("a connection between members is given up", address=self.address, reason=str(error))
            self._why = error
            self.cut()
            return
        if answer:
            self._transport.write(answer)
        if self._protocol is None:
            self._greet()
        if said and self._protocol is not None:
            self._protocol.data_received(said)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._deadline.cancel()
        if self._protocol is None:
            self._keeper.failed(self, self._why)
        else:
            self._protocol.connection_lost(error)

    def _greet(self) -> None:
        """Let talk to the other side, if it is known now."""
        if self._session.theirs is None:
            return
        try:
            peer = agreed(self._claim, self._session.theirs)
        except DisagreementError as error:
            self._why = error
            self._transport.close()  # not cut: the other side is to know this side's claim, and to say why, too
            return
        self._deadline.cancel()
        self._protocol = self._keeper.proven(self, peer)
        self._protocol.connection_made(Sealed(self._transport, self._session))

    def _late(self) -> None:
        self._why = self._why or TimeoutError(f"it has not proved itself within {PROVEN_WITHIN:.0f} s")
        self.cut()


class Entrance:
    """Where members come in, and strangers do not.

    Args:
        key: of the tier.
        claim: what this side says of itself, now.
        accept: called with each member that comes; returns what talks to it.
    """

    def __init__(self, key: SharedKey, claim: Callable[[], Claim], accept: Callable[[Peer], asyncio.Protocol]) -> None:
        self.strangers = 0
        """Connections so far that were not proven."""
        self._key = key
        self._claim = claim
        self._accept = accept
        self._unproven: dict[Channel, None] = {}
        """The oldest first."""
        self._logged_at: dict[str | None, float] = {}
        """By member; None: of strangers."""

    async def open(self, host: str, port: int) -> asyncio.Server:
        """Listen.

        Raises:
            OSError: it cannot listen there.
        """
        return await asyncio.get_running_loop().create_server(self.channel, host, port, backlog=_BACKLOG)

    def channel(self) -> Channel:
        """The protocol of a new connection."""
        claim = self._claim()
        return Channel(self, Session(self._key, claim, secrets.token_bytes(NONCE), calls=False), claim)

    def close(self) -> None:
        """Cut the connections that are not proven."""
        for channel in self._unproven:
            channel.cut()

    def begun(self, channel: Channel) -> None:
        """See `Keeper`."""
        if len(self._unproven) >= MOST_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.cut()
        self._unproven[channel] = None

    def proven(self, channel: Channel, peer: Peer) -> asyncio.Protocol:
        """See `Keeper`."""
        self._unproven.pop(channel, None)
        if peer.differs and self._logs(peer.claim.member):
            _log.warning("a member has other settings than this one", member=peer.claim.member, differs=peer.differs)
        return self._accept(peer)

    def failed(self, channel: Channel, why: Exception | None) -> None:
        """See `Keeper`."""
        self._unproven.pop(channel, None)
        if isinstance(why, DisagreementError):
            _log.error("a member of the tier is not served", address=channel.address, reason=str(why))
            return
        self.strangers += 1
        if isinstance(why, SealError) and self._logs(None):
            _log.warning("not served", address=channel.address, reason=str(why), strangers=self.strangers)

    def _logs(self, member: str | None) -> bool:
        """Whether a line about a member, or about strangers, is due; if so, it is taken as written."""
        now = asyncio.get_running_loop().time()
        is_due = now - self._logged_at.get(member, -LOGGED_EVERY) >= LOGGED_EVERY
        if is_due:
            self._logged_at[member] = now
        return is_due


class _Call:
    """A connection that this side began."""

    def __init__(self, address: str, protocol: Callable[[], asyncio.Protocol]) -> None:
        self.answered: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        self._address = address
        self._protocol = protocol

    def begun(self, channel: Channel) -> None:
        """See `Keeper`."""

    def proven(self, _channel: Channel, peer: Peer) -> asyncio.Protocol:
        """See `Keeper`."""
        if not self.answered.done():
            self.answered.set_result(peer)
        return self._protocol()

    def failed(self, _channel: Channel, why: Exception | None) -> None:
        """See `Keeper`."""
        reason = why or "it ended the connection without a word: it may have another key, or be no member"
        if not self.answered.done():
            self.answered.set_exception(UnprovenError(f"{self._address}: {reason}"))


async def connect(
    host: str,
    port: int,
    protocol: Callable[[], asyncio.Protocol],
    *,
    key: SharedKey,
    claim: Claim,
) -> Peer:
    """Connect to a member; return who it is. What the factory made talks to it then.

    Raises:
        UnprovenError: somebody else is there, or a member that this one cannot talk to.
        OSError: nobody could be reached in time.
    """
    call = _Call(f"{host}:{port}", protocol)
    channel = Channel(call, Session(key, claim, secrets.token_bytes(NONCE), calls=True), claim)
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(PROVEN_WITHIN):
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: channel, host, port)
            return await call.answered
    except BaseException as error:
        call.answered.cancel()
        if transport is not None:
            transport.abort()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"{host}:{port}: it has not proved itself within {PROVEN_WITHIN:.0f} s") from None
        raise


def _tune(connection: socket.socket | None) -> None:
    """Find out when the other machine is gone. That small frames leave at once is asyncio's default."""
    if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
