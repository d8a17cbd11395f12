"""Several workers under load for up to half a minute, beside one gateway and while some are killed.

The long runs, with the bounds that are promised, are `python -m tests.proof.workers`. Here a machine may be busy with
other work: what must never happen is counted, and what is compared has wide bounds.
"""

from pathlib import Path

import pytest

from tests.proof.workers import Bounds, broken_by_kills, broken_by_overload, killed, overload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OVERLOADED, KILLING = 30.0, 20.0
"""Seconds of load: shares and goodput settle more slowly than a successor comes."""
SHORT = Bounds(goodput=0.85, share=0.25, killed=0.7, wait=12.0)


async def test_four_fronts_do_at_twice_capacity_what_one_gateway_does(tmp_path: Path) -> None:
    one, four = await overload(tmp_path, OVERLOADED)
    assert four.measured.figures["refused"] > 0.1 * four.measured.figures["offered"]
    assert broken_by_overload(one, four, SHORT) == []


@pytest.mark.parametrize(("what", "every"), [("fronts", 6.0), ("owner", 8.0)])
async def test_what_is_killed_harms_its_own_connections_alone(what: str, every: float, tmp_path: Path) -> None:
    run, kills = await killed(tmp_path, KILLING, what, every)
    assert len(kills) >= 2
    if what == "fronts":
        assert any(kill.ports for kill in kills), "they had connections"
    assert broken_by_kills(run, kills, what, SHORT) == []
