import pytest

from gateway.config.endpoint import Reached
from gateway.endpoints.exposition import EXPECTED
from gateway.endpoints.readers import READERS
from gateway.wire.engine_kinds import KINDS, VLLM


def test_every_kind_has_its_readers():
    assert READERS.keys() == KINDS.keys()


def test_each_endpoint_has_a_reader_of_its_own():
    one, other = (READERS["llama-server"].metrics() for _ in range(2))
    slot = b'[{"n_ctx":9,"is_processing":true,"id_task":1,"next_token":[{"n_decoded":3,"n_remain":1}]}]'
    assert one(slot, Reached()).generation_tokens == 3
    assert one(slot, Reached()).generation_tokens == other(slot, Reached()).generation_tokens == 3


@pytest.mark.parametrize(("kind", "missing"), [(VLLM.name, EXPECTED[0]), ("sglang", "sglang:token_usage")])
def test_an_engine_that_was_never_scraped_lacks_what_is_expected_of_it(kind, missing):
    assert missing in READERS[kind].unscraped.missing
