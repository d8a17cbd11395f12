import pytest

from gateway.simulation.machine import Machine


def test_what_is_less_than_a_block_is_not_usable():
    assert Machine(kv_tokens=1000, block_size=16).blocks == 62


@pytest.mark.parametrize(
    "settings", [{"kv_tokens": 15}, {"max_num_seqs": 0}, {"max_num_seqs": 64, "max_num_batched_tokens": 32}]
)
def test_a_machine_that_could_not_run_is_refused(settings):
    with pytest.raises(ValueError, match=r"\d"):
        Machine(**settings)
