"""People who come to an engine that a batch of long answers fills, against the simulated engine."""

import pytest

from gateway.admission.policy import Policy
from gateway.simulation.machine import Machine
from tests.simulation.clients import Crowd, polite


def short(random):
    return 100, 500 if random.random() < 0.1 else 40


def long(_):
    return 100, 2000


@pytest.mark.parametrize("limit", [16, 64])
def test_they_have_more_than_half_of_their_share(limit):
    """The long answers end together. Who was refused meanwhile came back later, and the next ones had all places."""
    several = limit // 16
    people = [polite(flow="people", draw=short, known=False, begins=20.0) for _ in range(12 * several)]
    batch = [polite(flow="batch", draw=long, limit=2000) for _ in range(32 * several)]
    machine = Machine(kv_tokens=400_000 * several, max_num_seqs=limit)
    Crowd([*people, *batch], machine, Policy(ttft_target=5.0)).play(300.0)
    theirs, others = (sum(client.generated for client in clients) for clients in (people, batch))
    assert theirs > 0.25 * (theirs + others)
