"""HTTP towards clients on a unix socket, where the kernel ends no connection because nobody reads from it."""

import asyncio
from typing import Any

from gateway.server.http_protocol import STALLED, LimitedProtocol


class UnixProtocol(LimitedProtocol):
    """As over TCP; and who takes nothing of its answers for `STALLED` seconds is cut off."""

    _untaken = 0
    """Bytes that the client had yet to take at the last look."""
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        transport.set_write_buffer_limits(0)  # whatever it has yet to take is told, also after the last answer
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_looks()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        self._end_looks()
        super().resume_writing()

    def _look_later(self) -> None:
        self._untaken = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(STALLED, self._has_taken)

    def _end_looks(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _has_taken(self) -> None:
        if self.transport.get_write_buffer_size() < self._untaken:
            self._look_later()
        else:
            self.transport.abort()
