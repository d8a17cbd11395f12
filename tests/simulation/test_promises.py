"""Who comes back when it was told to, beside those who do not wait that long: against the simulated engine."""

from statistics import mean

import pytest

from gateway.admission.policy import Policy
from gateway.simulation.machine import Machine
from tests.simulation.clients import Crowd, polite, rude

MACHINE, SLOW = Machine(kv_tokens=8000, max_num_seqs=4), Machine(kv_tokens=8000, max_num_seqs=2)
SECONDS, WARM = 600.0, 120.0


def crowd(politely, rudely, *, seed=1, machine=MACHINE, policy=None, **settings):
    """So many clients of each kind, all at the same pace; they could keep the engine busy several times."""
    return Crowd(
        [polite(begins=number / 10, **settings) for number in range(politely)]
        + [rude(begins=number / 10, **settings) for number in range(rudely)],
        machine,
        policy or Policy(),
        seed,
    ).play(SECONDS)


def served(clients):
    """Of each client, on average."""
    return mean(sum(end > WARM for end in client.ends) for client in clients)


@pytest.fixture(scope="module")
def mixed():
    return crowd(12, 12)


def test_without_promises_the_polite_starve():
    played = crowd(6, 18, known=False, machine=SLOW)
    assert served(played.clients[:6]) < served(played.clients[6:]) / 2
    assert sum(client.given_up for client in played.clients[:6]) > 20


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("machine", [MACHINE, SLOW])
def test_the_polite_get_at_least_their_share(seed, machine):
    played = crowd(6, 18, seed=seed, machine=machine)
    assert served(played.clients[:6]) > 0.95 * served(played.clients[6:])
    assert not any(client.given_up for client in played.clients[:6])


def test_one_that_waits_as_told_has_its_turn_beside_24_that_do_not():
    played = crowd(1, 24)
    assert served(played.clients[:1]) > 0.9 * served(played.clients[1:])
    assert not played.clients[0].given_up


def test_nothing_of_the_engine_is_left_unused_for_it(mixed):
    assert mixed.busy > 0.99 * SECONDS
    unpromised = crowd(12, 12, known=False)
    assert sum(len(c.ends) for c in mixed.clients) > 0.98 * sum(len(c.ends) for c in unpromised.clients)


def test_where_all_wait_as_told_nothing_is_left_unused_either():
    played = crowd(24, 0)
    assert played.busy > 0.98 * SECONDS
    assert not any(client.given_up for client in played.clients)


def test_under_constant_load_the_times_told_stay_within_a_factor_of_two(mixed):
    told = sorted(told for client in mixed.clients for at, told in client.told if at > WARM)
    assert len(told) > 300
    assert told[-1] < 2 * told[0]


def test_flows_share_as_without_promises():
    clients = [polite(flow="few") for _ in range(6)]
    clients += [rude(flow="many", begins=number / 10) for number in range(24)]
    Crowd(clients, MACHINE, Policy(), 1).play(SECONDS)
    few, many = (sum(len(c.ends) for c in clients if c.flow == flow) for flow in ("few", "many"))
    assert few / (few + many) == pytest.approx(0.5, abs=0.03)


def test_of_a_full_queue_they_get_their_share_too():
    played = crowd(6, 18, policy=Policy(max_requests=4, ttft_target=None))
    assert served(played.clients[:6]) > 0.9 * served(played.clients[6:])
