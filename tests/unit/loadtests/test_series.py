import math

import aiohttp
import pytest

from loadtests.series import Sampler, idle, page, read, sample
from tests.fakes.vllm import FakeVllm

VLLM = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running 3\nvllm:num_preemptions_total 7\n'
KVGATE = 'kvgate_queue_depth{model="a"} 4\nkvgate_queue_depth{model="b,} \\"c"} 1\n'


def test_series_are_joined_over_pages_and_labels_and_the_missing_stay_missing():
    found = read([page(VLLM), page(VLLM.replace("0.5", "0.75")), page(KVGATE)])
    assert found == {"KV": 0.75, "running": 6, "preemptions": 14, "queued in kvgate": 5}


def sampler(samples: list[dict[str, float]]) -> Sampler:
    watched = Sampler.__new__(Sampler)
    watched.samples = samples
    return watched


def test_counters_start_from_nothing_and_a_scrape_that_failed_leaves_a_hole():
    series = sampler([{"preemptions": 7.0, "KV": 0.1}, {}, {"preemptions": 9.0, "KV": 0.2}]).series
    assert series["preemptions"] == pytest.approx([0.0, math.nan, 2.0], nan_ok=True)
    assert series["KV"] == pytest.approx([0.1, math.nan, 0.2], nan_ok=True)
    assert set(series) == {"preemptions", "KV"}


async def test_a_page_that_is_gone_is_a_hole_not_a_failure():
    async with FakeVllm() as fake, aiohttp.ClientSession() as session:
        pages = [f"{fake.url}/metrics", f"{fake.url}/none"]
        assert (await sample(session, pages))["running"] == 0
        assert await sample(session, pages[1:]) == {}
        await idle(session, pages)
