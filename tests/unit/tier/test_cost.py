"""The measurement of an owner's cost: what stands in for a monitor and a wire must follow the real ones."""

import asyncio

from tests.proof.tier_cost import measure


def test_owner_and_fronts_live_through_a_few_requests():
    owner, front = asyncio.run(measure(in_flight=4, rounds=8))
    assert owner > 0
    assert front > 0
