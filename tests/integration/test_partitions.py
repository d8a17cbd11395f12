"""A tier whose network loses packets. `tests.proof.partitions` has more gateways, and more ways to part them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.partitions import Parted, allowed, parted_tier
from tests.integration.tiers import FALLBACK, PLACES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not allowed(), reason="network namespaces need root"),
]
SECONDS = 6.0
"""For which packets are lost: longer than a gateway waits for an owner."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Parted]:
    folder = tmp_path_factory.mktemp("parted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVGATE_CACHE", str(folder / "cache"))
        async with parted_tier(folder, 2) as running:
            yield running


async def test_an_owner_that_redis_loses_sight_of_is_followed_by_one_that_knows_what_it_has(parted: Parted) -> None:
    owner, _ = await parted.roles()
    outcome = await parted.parted([(owner.host, parted.network.redis)], SECONDS, owner)
    outcome.report("the owner cut off from Redis")
    assert outcome.lost() == []
    assert outcome.most <= PLACES * 1.5


async def test_a_gateway_that_only_its_clients_reach_decides_within_its_share(parted: Parted) -> None:
    owner, (front,) = await parted.roles()
    cuts = [(front.host, owner.host), (front.host, parted.network.redis)]
    outcome = await parted.parted(cuts, SECONDS, owner)
    outcome.report("a gateway cut off from all")
    assert outcome.lost() == []
    assert outcome.most <= PLACES * (1 + FALLBACK)


async def test_a_gateway_that_redis_sees_but_not_its_owner_never_decides(parted: Parted) -> None:
    owner, (front,) = await parted.roles()
    outcome = await parted.parted([(front.host, owner.host)], SECONDS, owner)
    outcome.report("a gateway cut off from the owner alone")
    assert outcome.lost(front) == []
    assert outcome.unready == {front}
    assert outcome.refused, "what comes then does not wait for 8 s"
    assert outcome.most <= PLACES
