"""An urgent band and a less urgent one, both with more than the simulated engine can do."""

import pytest

from gateway.admission.policy import Band, Policy
from gateway.simulation.machine import Machine
from tests.simulation.clients import Crowd, polite


def chat(_):
    return 20, 100


def mostly_short(random):
    return 20, 5 if random.random() < 0.55 else 2000


def part_of_less_urgent(urgent, less_urgent, reserved=0.0, seed=1):
    """The part of all tokens that the less urgent clients get."""
    machine = Machine(kv_tokens=400_000, max_num_seqs=16)
    policy = Policy(ttft_target=5.0, bands={5: Band(reserved=reserved)})
    Crowd([*urgent, *less_urgent], machine, policy, seed).play(400.0)
    theirs, others = (sum(client.generated for client in clients) for clients in (less_urgent, urgent))
    return theirs / (theirs + others)


@pytest.mark.parametrize(("reserved", "least", "most"), [(0.0, 0.01, 0.04), (0.2, 0.15, 0.25)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_band_of_mostly_short_and_some_long_answers_gets_what_is_reserved_for_it(reserved, least, most, seed):
    """Charged by its usual length it went first a hundred times too often, and had half of the engine."""
    people = [polite(flow="people", draw=chat, limit=4095) for _ in range(40)]
    agents = [polite(flow="agents", draw=mostly_short, limit=4095, band=5) for _ in range(40)]
    assert least < part_of_less_urgent(people, agents, reserved, seed) < most


@pytest.mark.parametrize("light", [0, 1, 4])
def test_flows_that_need_little_give_no_room_of_their_band_to_a_less_urgent_one(light):
    """Another flow of their band leaves places free for them. A less urgent band had taken these, one by one."""
    heavy = [polite(flow="heavy", draw=chat) for _ in range(30)]
    few = [polite(flow=f"light {n}", draw=lambda random: (20, random.choice([5, 400]))) for n in range(light)]
    less_urgent = [polite(flow=f"less urgent {n % 20}", draw=chat, band=5) for n in range(40)]
    assert part_of_less_urgent([*heavy, *few], less_urgent) < 0.04
