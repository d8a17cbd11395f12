"""What one round of questions to an endpoint brings back. Never raises for anything an endpoint does."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import msgspec

from gateway.descriptors import OutOfDescriptorsError, lacking

MAX_METRICS = 8 * 2**20
"""Bytes; a larger answer is not read on. The metrics of an engine with many ranks are a few MB."""
MAX_ANSWER = 2**20
"""The same of any other answer: thousands of LoRA adapters are less."""

_FRESH = {"connection": "close", "accept-encoding": "identity"}
"""Each question goes over a connection of its own: that the engine still accepts them is part of the answer. Answers
come uncompressed: 660 bytes that were compressed twice became 300 MB before their length could be seen."""

_CONNECTED = frozenset({"connection.connect_tcp.complete", "http11.send_request_headers.started"})
"""What httpcore says when there is a connection: a new one, or one that was there."""

_PROTOCOL_ERRORS = {
    httpx.LocalProtocolError: "the request cannot be sent as HTTP",
    httpx.RemoteProtocolError: "the answer broke off, or is not HTTP",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    body: bytes
    answered_at: float
    """When its head arrived."""

    @property
    def ok(self) -> bool:
        """Whether its status is 200."""
        return self.status == httpx.codes.OK


@dataclass(frozen=True, slots=True)
class NoReply:
    """No answer came."""

    reason: str
    unreachable: bool
    """No connection could be made, as opposed to one that broke or stayed silent."""
    accepted: bool = False
    """A connection was made, and stayed silent."""


class Prober:
    """Asks one endpoint.

    Args:
        client: with the endpoint's key and TLS context.
        base_url: of the endpoint.
        timeout: seconds for a whole answer.
        clock: monotonic seconds.

    Attributes:
        unanswered_at: when a question whose connection was taken last ended without an answer.
    """

    def __init__(self, client: httpx.AsyncClient, base_url: str, timeout: float, clock: Callable[[], float]) -> None:
        self.unanswered_at = float("-inf")
        self._client = client
        self._base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._clock = clock

    async def get(self, path: str) -> Reply | NoReply:
        """`GET path`, whole, within the timeout.

        Raises:
            OutOfDescriptorsError: it could not be asked, and nothing is known of it.
        """
        most = MAX_METRICS if path == "/metrics" else MAX_ANSWER
        steps: set[str] = set()

        async def trace(step: str, _: object) -> None:
            steps.add(step)

        url, traced = self._base_url + path, {"trace": trace}
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream("GET", url, headers=_FRESH, timeout=None, extensions=traced) as response,
            ):
                answered_at = self._clock()
                body = bytearray()
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > most:
                        return NoReply(f"GET {path}: more than {most >> 20} MiB of answer", unreachable=False)
                return Reply(response.status_code, bytes(body), answered_at)
        except TimeoutError:
            reason = f"GET {path}: no answer within {self._timeout:g} s"
            if accepted := not steps.isdisjoint(_CONNECTED):
                self.unanswered_at = self._clock()
            return NoReply(reason, unreachable=False, accepted=accepted)
        except httpx.ConnectError as error:
            if lacking(error):
                raise OutOfDescriptorsError from error
            return NoReply(f"cannot connect: {error}", unreachable=True)
        except httpx.ProtocolError as error:  # its text may quote headers, the key among them
            return NoReply(f"GET {path}: {_PROTOCOL_ERRORS[type(error)]}", unreachable=False)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return NoReply(f"GET {path}: {str(error) or type(error).__name__}", unreachable=False)

    async def asleep(self) -> bool | None:
        """What `/is_sleeping` says: also true of a paused engine. None where the route is not served.

        It is served only where sleep and pause are, with `VLLM_SERVER_DEV_MODE=1`.
        """
        match await self.get("/is_sleeping"):
            case Reply(status=httpx.codes.OK, body=body):
                try:
                    return _asleep.decode(body).is_sleeping
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    return None
            case _:
                return None


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


_asleep = msgspec.json.Decoder(_Sleeping)
