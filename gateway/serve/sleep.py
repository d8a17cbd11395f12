"""An engine's sleep: its weights lie in main memory, its cards are free, and its process stays.

vLLM has these routes in its development mode only (`VLLM_SERVER_DEV_MODE=1`), and never behind its API key. The engine
listens on 127.0.0.1, and kvgate serves none of them to clients.
"""

import httpx

_LONGEST = 120.0
"""Seconds to copy the weights, over PCIe; an engine that takes longer is taken for one that cannot."""


async def fall_asleep(url: str) -> bool:
    """Have the engine at this URL sleep; whether it does. No request may be on it: what it generates is aborted."""
    return await _become(url, "/sleep?level=1", asleep=True)


async def wake(url: str) -> bool:
    """Wake it; whether it is awake."""
    return await _become(url, "/wake_up", asleep=False)


async def _become(url: str, route: str, *, asleep: bool) -> bool:
    try:
        async with httpx.AsyncClient(base_url=url, timeout=_LONGEST, trust_env=False) as client:
            done = await client.post(route)
            said = await client.get("/is_sleeping")
            return done.is_success and said.is_success and said.json() == {"is_sleeping": asleep}
    except (httpx.HTTPError, ValueError):
        return False
