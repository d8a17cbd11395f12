"""Clients that go on asking while something is changed: not one of their requests may fail."""

import asyncio
import time

import httpx

from tests.integration.relaying import CHAT, body

PAUSE = 0.05
"""Seconds between two requests of a client: without it they take the whole machine for as long as a test waits."""


def client_of(url):
    """Plain HTTP: a TLS context takes longer to make than most requests take."""
    headers = {"authorization": "Bearer k"}
    return httpx.AsyncClient(base_url=url, timeout=30, headers=headers, trust_env=False, verify=False)  # noqa: S501


def sdk_of(url):
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=30, http_client=client_of(url))


class Load:
    """Clients that keep their connections, and others that open one each time; whole answers and streams."""

    def __init__(self, url):
        self._url = url
        self._stop = asyncio.Event()
        self.answered = 0
        self.failures = []

    async def __aenter__(self):
        kinds = [self._keeping, self._opening, self._streaming, self._sdk]
        self._tasks = [asyncio.create_task(self._over_and_over(kind)) for kind in kinds * 2]
        await self.more(20)
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def more(self, answers):
        """Wait until so many more were answered."""
        until = self.answered + answers
        deadline = time.monotonic() + 60
        while self.answered < until and not self.failures:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    async def _over_and_over(self, kind):
        async with (
            client_of(self._url) as client,
            sdk_of(self._url) as sdk,
        ):
            while not self._stop.is_set():
                try:
                    await kind(client, sdk)
                    self.answered += 1
                except Exception as error:  # noqa: BLE001
                    self.failures.append(f"{kind.__name__}: {error!r}")
                await asyncio.sleep(PAUSE)

    async def _keeping(self, client, _):
        (await client.post(CHAT, json=body(tokens=10))).raise_for_status()

    async def _opening(self, *_):
        async with client_of(self._url) as client:
            (await client.post(CHAT, json=body(tokens=10))).raise_for_status()

    async def _streaming(self, client, _):
        async with client.stream("POST", CHAT, json=body(tokens=100, stream=True)) as answer:
            answer.raise_for_status()
            text = b"".join([piece async for piece in answer.aiter_raw()])
        assert text.endswith(b"data: [DONE]\n\n"), text[-300:]
        assert b"error" not in text

    async def _sdk(self, _, sdk):
        chunks = await sdk.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=30, stream=True
        )
        reasons = [chunk.choices[0].finish_reason async for chunk in chunks if chunk.choices]
        assert reasons[-1] == "length"
