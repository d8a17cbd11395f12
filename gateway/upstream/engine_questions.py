"""Questions to an engine's counting routes, on the connections of the relay: one pool of them, one time to connect."""

import asyncio
from collections.abc import Callable

from gateway.tokens.engine_count import UnansweredError, UnreachedError
from gateway.upstream.http_upstream import HttpUpstream
from gateway.upstream.interface import ConnectFailedError, UpstreamError

_HEADERS = ((b"content-type", b"application/json"), (b"accept-encoding", b"identity"))
"""Answers come uncompressed: a small one compressed twice becomes gigabytes."""


class EngineQuestions:
    """Asks one endpoint. Implements `gateway.tokens.engine_count.Ask`.

    Args:
        upstream: the relay's client.
        base_url: of the endpoint.
        api_key: sent to it.
        failed: told why a question was not answered to the end, but for its time.
    """

    def __init__(
        self, upstream: HttpUpstream, base_url: str, api_key: str | None, failed: Callable[[str], None]
    ) -> None:
        self._upstream = upstream
        self._base_url = base_url
        self._failed = failed
        key = () if api_key is None else ((b"authorization", b"Bearer " + api_key.encode()),)
        self._headers = (*_HEADERS, *key)

    async def __call__(self, path: str, body: bytes, *, silence: float, longest: float, most: int) -> tuple[int, bytes]:
        """See `Ask`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + longest
        connected = asyncio.Event()
        try:
            async with asyncio.timeout_at(min(now + silence, end)) as limit:
                answer = await self._upstream.send(
                    self._base_url, "POST", path, self._headers, body, connected=connected.set, repeatable=True
                )
                try:
                    read = bytearray()
                    while len(read) <= most:
                        limit.reschedule(min(loop.time() + silence, end))
                        piece = await answer.read_some()
                        if not piece:
                            break
                        read += piece
                finally:
                    answer.close()
        except TimeoutError:
            kind = UnansweredError if connected.is_set() else UnreachedError
            raise kind("it did not come to an end in time") from None
        except UpstreamError as error:
            self._failed(str(error))
            kind = UnreachedError if isinstance(error, ConnectFailedError) else UnansweredError
            raise kind(str(error)) from None
        finally:
            del limit  # it knows the task, which keeps what is raised here, and so this frame and the body
        return answer.status, bytes(read)
