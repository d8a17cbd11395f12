"""The lookup of endpoints' names, in threads of its own.

`getaddrinfo` blocks for as long as its name servers are silent, 10 s and more for each question, and cannot be ended.
The event loop has a few threads for it: there one name that nobody answers for keeps all other endpoints from being
reached. Here it holds one thread, and nobody waits for that but who asked for this name.
"""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Sequence

_Found = Sequence[str] | Exception


class NameLookup:
    """Looks each name up once at a time: who asks meanwhile hears the same."""

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[_Found]] = {}

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
        found = await asyncio.shield(looking)
        if isinstance(found, Exception):
            raise OSError(*found.args) if isinstance(found, OSError) else OSError(str(found))
        return found

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
        if not looking.done():
            looking.set_result(found)


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
