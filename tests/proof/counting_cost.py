"""What counting costs, and what a very large prompt does to everybody else. Prints figures; nothing is asserted.

Usage: python tests/proof/counting_cost.py TOKENIZER, a folder or hub id with a chat template.
"""

import asyncio
import json
import sys
import time

from gateway.tokens.local_count import count_body, load
from gateway.tokens.pool import CountingPool
from gateway.tokens.prefix import new_key
from gateway.tokens.render import TokenizerSource
from gateway.wire.request import Api

TEXT = "The quick brown fox jumps over the lazy dog, and says: where is everybody? "
SIZES = {"200 B": 2, "1 KB": 13, "10 KB": 136, "50 KB": 680, "1 MB": 14_000, "5 MB": 70_000}
MAX_MODEL_LEN = 10**7
PROCESS_BYTES = 64 * 2**10
REPEATS = 5
KEY = new_key()


def body(repeats: int) -> bytes:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT * repeats}]
    return json.dumps({"model": "m", "messages": messages}).encode()


def cost_of_counting(source: TokenizerSource) -> None:
    print("CPU in one thread, by size of the body, and with the hashes of the prompt's leading parts:")
    for name, repeats in SIZES.items():
        request = body(repeats)
        counted = count_body(source, Api.CHAT, request, MAX_MODEL_LEN, key=KEY)
        plain, hashed = [], []
        for _ in range(REPEATS):  # in turn: this machine has other work
            plain.append(cost(source, request, None))
            hashed.append(cost(source, request, KEY))
        print(
            f"  {name:>6}: {min(plain):12,.0f} us, hashed {min(hashed):12,.0f} us, {len(counted.prefix)} parts "
            f" ({len(request):,} bytes, {sum(counted.prompts):,} tokens)"
        )


def cost(source: TokenizerSource, request: bytes, key: bytes | None) -> float:
    rounds = max(1, 400_000 // len(request))
    start = time.process_time()
    for _ in range(rounds):
        count_body(source, Api.CHAT, request, MAX_MODEL_LEN, key=key)
    return (time.process_time() - start) / rounds * 1e6


async def lag_beside_a_large_prompt(source: TokenizerSource) -> None:
    pool = CountingPool(threads=2, processes=1, process_bytes=PROCESS_BYTES, max_pending_bytes=2**28)
    await pool.run_everywhere(load, source)
    small, large = body(13), body(70_000)
    rounds = 500
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        await pool.run("small", len(small), count_body, source, Api.CHAT, small, MAX_MODEL_LEN, key=KEY)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"1 KB through the pool, alone: {wall / rounds * 1e6:,.0f} us, {cpu / rounds * 1e6:,.0f} us of CPU")

    start = time.perf_counter()
    counting = asyncio.create_task(pool.run("large", len(large), count_body, source, Api.CHAT, large, MAX_MODEL_LEN))
    lags, waits = [], []
    while not counting.done():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        lags.append(time.perf_counter() - before - 0.001)
        before = time.perf_counter()
        await pool.run("small", len(small), count_body, source, Api.CHAT, small, MAX_MODEL_LEN)
        waits.append(time.perf_counter() - before)
    took = time.perf_counter() - start
    tokens = sum((await counting).prompts)
    print(f"beside one prompt of {len(large):,} bytes ({tokens:,} tokens, {took:.1f} s):")
    print(f"  lag of the event loop: median {median(lags):.2f} ms, worst {max(lags) * 1e3:.1f} ms")
    print(f"  count of 1 KB:         median {median(waits):.2f} ms, worst {max(waits) * 1e3:.1f} ms")
    await pool.close()


def median(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2] * 1e3


if __name__ == "__main__":
    tokenizer = TokenizerSource(sys.argv[1])
    cost_of_counting(tokenizer)
    asyncio.run(lag_beside_a_large_prompt(tokenizer))
