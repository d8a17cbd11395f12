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
from gateway.tokens.render import TokenizerSource, renderer
from gateway.wire.request import Api

TEXT = "The quick brown fox jumps over the lazy dog, and says: where is everybody? "
SIZES = {"200 B": 2, "1 KB": 13, "10 KB": 136, "50 KB": 680, "1 MB": 14_000, "5 MB": 70_000}
MAX_MODEL_LEN = 10**7
PROCESS_BYTES = 64 * 2**10
REPEATS = 5
TURNS = 20
KEY = new_key()


def body(repeats: int, number: int = 0) -> bytes:
    """A request of its own number: what has come before is not encoded again."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{number} " + TEXT * repeats}]
    return json.dumps({"model": "m", "messages": messages}).encode()


def cost_of_counting(source: TokenizerSource) -> None:
    print("CPU in one thread, by size of the body, and with the hashes of the prompt's leading parts:")
    for name, repeats in SIZES.items():
        size = len(body(repeats))
        rounds = max(1, 400_000 // size)
        numbers = iter(range(10**6))
        plain: list[float] = []
        hashed: list[float] = []
        for _ in range(REPEATS):  # in turn: this machine has other work
            for costs, key in ((plain, None), (hashed, KEY)):
                costs.append(cost(source, [body(repeats, next(numbers)) for _ in range(rounds)], key))
        counted = count_body(source, Api.CHAT, body(repeats), MAX_MODEL_LEN, key=KEY)
        print(
            f"  {name:>6}: {min(plain):12,.0f} us, hashed {min(hashed):12,.0f} us, {len(counted.prefix)} parts "
            f" ({size:,} bytes, {sum(counted.prompts):,} tokens)"
        )


def cost_of_turns(source: TokenizerSource) -> None:
    """The last turn of conversations that came back a turn longer each time, and of ones that come as they are."""

    def turns(number: int) -> list[bytes]:
        roles = ["user", "assistant"] * TURNS
        texts = [f"{number} {turn} " + TEXT * 24 for turn in range(2 * TURNS - 1)]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        return [json.dumps({"messages": messages[: 2 * turn + 1]}).encode() for turn in range(TURNS)]

    again = [[cost(source, [turn], KEY) for turn in turns(number)][-1] for number in range(REPEATS)]
    new = [cost(source, [turns(REPEATS + number)[-1]], KEY) for number in range(REPEATS)]
    tokens = sum(count_body(source, Api.CHAT, turns(0)[-1], MAX_MODEL_LEN).prompts)
    print(
        f"turn {TURNS} of a conversation of {tokens:,} tokens: {min(again):,.0f} us; come as it is: {min(new):,.0f} us"
    )
    print(f"{min(new) / tokens * 1e3:,.0f} us for 1,000 tokens; `tokenizers` alone: {alone(source) * 1e3:,.0f} us")


def alone(source: TokenizerSource) -> float:
    """Microseconds for a token that has not been seen, by the tokenizer's own call."""
    encode, best = renderer(source)._encode, float("inf")
    for number in range(REPEATS):
        text = " ".join(f"{number} {part} {TEXT * 24}" for part in range(2 * TURNS))
        start = time.process_time()
        tokens = len(encode(text, False))
        best = min(best, (time.process_time() - start) / tokens)
    return best * 1e6


def cost(source: TokenizerSource, requests: list[bytes], key: bytes | None) -> float:
    """Microseconds for each of these requests."""
    start = time.process_time()
    for request in requests:
        count_body(source, Api.CHAT, request, MAX_MODEL_LEN, key=key)
    return (time.process_time() - start) / len(requests) * 1e6


async def lag_beside_a_large_prompt(source: TokenizerSource) -> None:
    pool = CountingPool(threads=2, processes=1, process_bytes=PROCESS_BYTES, max_pending_bytes=2**28)
    await pool.run_everywhere(load, source)
    small, large = body(13), body(70_000)
    smalls = [body(13, number) for number in range(500)]
    start, cpu = time.perf_counter(), time.process_time()
    for each in smalls:
        await pool.run("small", len(each), count_body, source, Api.CHAT, each, MAX_MODEL_LEN, key=KEY)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"1 KB through the pool, alone: {wall / len(smalls) * 1e6:,.0f} us, {cpu / len(smalls) * 1e6:,.0f} us of CPU")

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
    cost_of_turns(tokenizer)
    asyncio.run(lag_beside_a_large_prompt(tokenizer))
