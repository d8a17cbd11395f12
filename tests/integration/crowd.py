"""Clients that keep a gateway busy from a thread of their own, while a test looks elsewhere."""

import asyncio
import contextlib
import random
import threading
from types import TracebackType
from typing import Any, Self

import httpx


class Crowd:
    """So many clients, each with one stream after another.

    Args:
        url: of the gateway.
        clients: how many.
        request: the body of each; `max_tokens` may be several, of which each takes one by chance.
        keys: of the clients, in turn.
        path: of the API.
    """

    def __init__(
        self,
        url: str,
        clients: int,
        request: dict[str, Any],
        *,
        lengths: tuple[int, ...] = (64,),
        keys: tuple[str, ...] = (),
        path: str = "/v1/chat/completions",
    ) -> None:
        self._url, self._clients, self._request, self._path = url, clients, request, path
        self._lengths, self._keys = lengths, keys
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._all(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _all(self) -> None:
        self._stop = asyncio.Event()
        chance = random.Random(7)  # noqa: S311
        limits = httpx.Limits(max_connections=None)
        # Plain HTTP: a TLS context would take longer to make than most answers.
        async with httpx.AsyncClient(
            base_url=self._url,
            timeout=600,
            limits=limits,
            trust_env=False,
            verify=False,  # noqa: S501
        ) as client:
            tasks = [asyncio.create_task(self._one(client, number, chance)) for number in range(self._clients)]
            await self._stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, client: httpx.AsyncClient, number: int, chance: random.Random) -> None:
        key = self._keys[number % len(self._keys)] if self._keys else None
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        while True:
            asked = {**self._request, "max_tokens": chance.choice(self._lengths), "stream": True}
            refused = True  # or nobody is there
            with contextlib.suppress(httpx.TransportError):
                async with client.stream("POST", self._path, json=asked, headers=headers) as answer:
                    refused = answer.status_code != httpx.codes.OK
                    async for _ in answer.aiter_raw():
                        pass
            await asyncio.sleep(0.5 if refused else 0.01)
