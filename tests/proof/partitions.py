"""A tier whose network loses packets: what clients see, and how far the engine is over-committed.

    python -m tests.proof.partitions [--seconds 8]

Four gateways, each in a network namespace of its own, under more load than the engine has places for. It needs root.

- the owner is cut off from Redis,
- a front is cut off from the owner, but not from Redis,
- a front is cut off from both,
- the owner is cut off from half of the others.

The exit code is 1 if a bound is broken.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.integration.partitions import Parted, allowed, parted_tier
from tests.integration.tiers import FALLBACK, PLACES

GATEWAYS = 4
MOST = {"owner from Redis": 2.0, "front from owner": 1.0, "front from both": 1 + FALLBACK, "owner from half": 1.0}
"""The most of the engine's places that are taken: what the owner had and what its successor adds before the gauges show
that, the owner's, and the owner's with the share of a gateway that is alone."""


async def all_parted(parted: Parted, seconds: float) -> list[str]:
    """Part them in each way; return the bounds that were broken."""
    redis = parted.network.redis
    broken = []
    for what, most in MOST.items():
        owner, (front, second, *_) = await parted.roles()
        cuts = {
            "owner from Redis": [(owner.host, redis)],
            "front from owner": [(owner.host, front.host)],
            "front from both": [(owner.host, front.host), (front.host, redis)],
            "owner from half": [(owner.host, front.host), (owner.host, second.host)],
        }[what]
        allowed = {"front from owner": [front], "owner from half": [front, second]}.get(what, [])
        outcome = await parted.parted(cuts, seconds, owner)
        outcome.report(what)
        if lost := outcome.lost(*allowed):
            broken.append(f"{what}: {len(lost)} requests failed")
        if outcome.most > PLACES * most:
            broken.append(f"{what}: {outcome.most} sequences at once, {PLACES * most:.0f} at most are promised")
    return broken


async def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="for which packets are lost")
    arguments = parser.parse_args()
    if not allowed():
        print("network namespaces need root: nothing was measured")
        return 1
    with tempfile.TemporaryDirectory(prefix="kvgate-partitions-") as name:
        os.environ["KVGATE_CACHE"] = str(Path(name) / "cache")
        async with parted_tier(Path(name), GATEWAYS) as parted:
            broken = await all_parted(parted, arguments.seconds)
    for line in broken:
        print(f"broken: {line}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
