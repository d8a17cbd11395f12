"""The lookup of endpoints' names, in threads of its own.

`getaddrinfo` blocks for as long as its name servers are silent, 10 s and more for each question, and cannot be ended.
The event loop has a few threads for it: there one name that nobody answers for keeps all other endpoints from being
reached. Here it holds one thread, and nobody waits for that but who asked for this name.

Name servers that are silent, or fail, say nothing of an endpoint: meanwhile its name stands for the addresses that it
had last, until one takes no connection. With the first of two name servers gone each lookup takes 5 s, as long as a
connection may.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Sequence

_PATIENCE = 0.25
"""Seconds that a lookup has to itself, where the name had addresses before."""
_SILENCE = socket.gaierror(socket.EAI_AGAIN, "no name server has answered yet")
_Found = Sequence[str] | Exception


class NameLookup:
    """Looks each name up once at a time: who asks meanwhile hears the same."""

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[_Found]] = {}
        self._known: dict[str, Sequence[str]] = {}
        """The last addresses of each name."""

    async def addresses(self, host: str) -> Sequence[str]:
        """The IP addresses of a host, in the order in which to try them.

        Raises:
            OSError: none is known.
        """
        if _is_address(host):
            return (host,)
        looking = self._looking.get(host)
        if looking is None:
            loop = asyncio.get_running_loop()
            looking = loop.create_future()
            threading.Thread(target=self._look, args=(loop, looking, host), name="name lookup", daemon=True).start()
            self._looking[host] = looking
        known = self._known.get(host)
        await asyncio.wait((looking,), timeout=None if known is None else _PATIENCE)
        found = looking.result() if looking.done() else _SILENCE
        if not isinstance(found, Exception):
            return found
        if known is not None and isinstance(found, socket.gaierror) and found.errno == socket.EAI_AGAIN:
            return known
        self.forget(host)
        raise OSError(*found.args) if isinstance(found, OSError) else OSError(str(found))

    def forget(self, host: str) -> None:
        """Forget the addresses of a host: no connection was made to it, or nobody needs it any more."""
        self._known.pop(host, None)

    def _look(self, loop: asyncio.AbstractEventLoop, looking: asyncio.Future[_Found], host: str) -> None:
        found: _Found
        try:
            told = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(address[0]) for *_, address in told))
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._found, looking, host, found)

    def _found(self, looking: asyncio.Future[_Found], host: str, found: _Found) -> None:
        del self._looking[host]
        if not isinstance(found, Exception):
            self._known[host] = found
        if not looking.done():
            looking.set_result(found)


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
