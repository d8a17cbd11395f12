"""The prober of one endpoint: asks it over HTTP. Never raises for anything an endpoint does."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable

import httpx
import msgspec

from gateway.endpoints.replies import MOST_VALUES, NoReply, Reply, crowded, unanswered
from gateway.runtime.descriptors import OutOfDescriptorsError, lacking

MAX_METRICS = 8 * 2**20
"""Most bytes read of `/metrics`. An engine with many ranks sends a few MB."""
MAX_ANSWER = 2**20
"""Most bytes read of any other answer; thousands of LoRA adapters take less."""

WORK = 60.0
"""Seconds for an answer that is work: an adapter is loaded, perhaps from a hub."""

TURNS = 50
"""Least turns of our own event loop that an endpoint gets to answer in: if the loop is busy, we are the late ones. A
question takes about ten."""

_FRESH = {"connection": "close", "accept-encoding": "identity"}
"""Each question opens its own connection: whether the engine still accepts one is part of the answer. Answers come
uncompressed: 660 bytes compressed twice became 300 MB before their length could be checked."""

_REFUSED = f"[Errno {errno.ECONNREFUSED}]"
_NOBODY = frozenset({errno.ECONNREFUSED, errno.ENOENT})
"""What tells that nobody listens: at an address, at the path of a unix socket."""


class Prober:
    """Asks one endpoint.

    Args:
        client: with the endpoint's key and TLS context. Its transport calls the extension `connected` once a question
            has a connection.
        base_url: of the endpoint.
        timeout: seconds for a whole answer.
        clock: monotonic seconds.

    Attributes:
        unanswered_at: when a question on an accepted connection last ended without an answer.
        lost: why the last `get` that was not answered was not, since this was last cleared.
    """

    def __init__(self, client: httpx.AsyncClient, base_url: str, timeout: float, clock: Callable[[], float]) -> None:
        self.unanswered_at = float("-inf")
        self.lost: str | None = None
        self._client = client
        self._base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._clock = clock

    async def get(self, path: str) -> Reply | NoReply:
        """`GET path`, whole, within the timeout.

        Raises:
            OutOfDescriptorsError: this process could not ask, so nothing is known of the endpoint.
        """
        reply = await self._asked("GET", path, self._timeout)
        self.lost = unanswered(path, reply) or self.lost
        return reply

    async def post(self, path: str, body: bytes) -> Reply | NoReply:
        """`POST path` with this JSON, which the endpoint may work on for a while. Raises as `get`."""
        return await self._asked("POST", path, max(self._timeout, WORK), body)

    async def _asked(self, method: str, path: str, timeout: float, body: bytes | None = None) -> Reply | NoReply:
        most = MAX_METRICS if path == "/metrics" else MAX_ANSWER
        accepted = False

        def connected() -> None:
            nonlocal accepted
            accepted = True

        url, told = self._base_url + path, {"connected": connected}
        headers = _FRESH if body is None else _FRESH | {"content-type": "application/json"}
        try:
            async with (
                _timeout(timeout),
                self._client.stream(
                    method, url, content=body, headers=headers, timeout=None, extensions=told
                ) as response,
            ):
                answered_at = self._clock()
                read = bytearray()
                async for part in response.aiter_raw():
                    read += part
                    if len(read) > most:
                        return NoReply(f"{method} {path}: more than {most >> 20} MiB of answer")
                reply = Reply(response.status_code, bytes(read), answered_at)
                return reply if path == "/metrics" else _bounded(path, reply)
        except (TimeoutError, httpx.ConnectTimeout) as error:
            waited = str(error) if not accepted and str(error) else f"no answer within {timeout:g} s"
            if accepted:
                self.unanswered_at = self._clock()
            return NoReply(f"{method} {path}: {waited}", accepted=accepted)
        except httpx.ConnectError as error:
            if lacking(error):
                raise OutOfDescriptorsError from error
            return NoReply(f"cannot connect: {error}", refused=_refused(error))
        except httpx.RemoteProtocolError:
            return NoReply(f"{method} {path}: the answer broke off, or is not HTTP")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return NoReply(f"{method} {path}: {str(error) or type(error).__name__}")

    async def asleep(self) -> bool | NoReply | None:
        """The answer of `/is_sleeping`, also true of a paused engine; None if the route is not served.

        vLLM serves it only together with sleep and pause, with `VLLM_SERVER_DEV_MODE=1`.
        """
        reply = await self.get("/is_sleeping")
        if (reason := unanswered("/is_sleeping", reply)) is not None:
            return NoReply(reason)
        if not (isinstance(reply, Reply) and reply.ok):
            return None
        try:
            return _asleep.decode(reply.body).is_sleeping
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def _bounded(path: str, reply: Reply) -> Reply | NoReply:
    """The answer, if it has few enough values."""
    return NoReply(f"GET {path}: more than {MOST_VALUES} values in its answer") if crowded(reply.body) else reply


def _refused(error: BaseException) -> bool:
    """Whether a connection was refused, by one address at least of those that a name stands for.

    asyncio joins the failures of several addresses into one text.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if isinstance(found, OSError) and (found.errno in _NOBODY or _REFUSED in str(found)):
            return True
        if found is not None:
            pending += [found.__cause__ or found.__context__]
    return False


@contextlib.asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout`, but at least `TURNS` turns of the event loop long."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def turn(left: int) -> None:
        nonlocal timer
        if left:
            timer = loop.call_later(seconds / TURNS, turn, left - 1)
        else:
            limit.reschedule(loop.time())

    timer = loop.call_later(seconds / TURNS, turn, TURNS - 1)
    async with asyncio.timeout(None) as limit:
        try:
            yield
        finally:
            timer.cancel()


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


_asleep = msgspec.json.Decoder(_Sleeping)
