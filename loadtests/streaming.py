"""One streamed completion, timed."""

import asyncio
from dataclasses import dataclass, field

import aiohttp
import msgspec

from loadtests.sse import EventReader
from loadtests.workload import Arrival


@dataclass(slots=True)
class Outcome:
    """The result of one request. Times are seconds after the run's start."""

    arrival: Arrival
    started: float = 0.0
    events: list[float] = field(default_factory=list)
    """Arrival time of each event with a token."""
    ended: float = 0.0
    completion_tokens: int = 0
    loss: str | None = None
    """Why the answer is incomplete; None if it is complete."""

    @property
    def ttft(self) -> float:
        """Seconds from its due arrival, not its sending, to the first token."""
        return self.events[0] - self.arrival.at


async def stream_completion(
    session: aiohttp.ClientSession, base_url: str, model: str, arrival: Arrival, epoch: float
) -> Outcome:
    """Send a request at its time and read its stream to the end. A failure is an outcome, never an exception."""
    loop = asyncio.get_running_loop()
    outcome = Outcome(arrival)
    await asyncio.sleep(epoch + arrival.at - loop.time())
    outcome.started = loop.time() - epoch
    body = {
        "model": model,
        "prompt": arrival.prompt,
        "max_tokens": arrival.output_tokens,
        "min_tokens": arrival.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        outcome.loss = await _read(session, f"{base_url}/v1/completions", body, outcome, epoch)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        outcome.loss = type(error).__name__
    outcome.ended = loop.time() - epoch
    return outcome


async def _read(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], outcome: Outcome, epoch: float
) -> str | None:
    loop = asyncio.get_running_loop()
    reader = EventReader()
    done = finished = False
    async with session.post(url, data=msgspec.json.encode(body), headers={"content-type": "application/json"}) as got:
        if got.status != 200:
            return f"status {got.status}"
        async for data in got.content.iter_any():
            now = loop.time() - epoch
            for payload in reader.feed(data):
                if payload == b"[DONE]":
                    done = True
                    continue
                chunk = msgspec.json.decode(payload)
                if "error" in chunk:
                    return f"error event {chunk['error'].get('code')}"
                if chunk.get("usage"):
                    outcome.completion_tokens = chunk["usage"]["completion_tokens"]
                for choice in chunk["choices"]:
                    outcome.events.append(now)
                    finished = finished or choice["finish_reason"] == "length"
    if not (done and finished and outcome.completion_tokens == outcome.arrival.output_tokens):
        return f"ended after {outcome.completion_tokens} of {outcome.arrival.output_tokens} tokens"
    return None
