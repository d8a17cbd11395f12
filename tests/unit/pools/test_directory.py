import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gateway.admission.events import Demand, EndpointId, RequestId
from gateway.admission.tuning import TUNING
from gateway.config.settings import ModelSettings
from gateway.endpoints.identity import Identity
from gateway.pools.directory import Directory, Endpoint, NotStartedError, Pool


def identity(*names, loras=(), length=100, version="0.32.0", kind="vllm"):
    return Identity(names=names, loras=loras, root=None, max_model_len=length, version=version, kind=kind)


class World:
    """A directory of endpoints, as their owner fills it, and what it asked for."""

    def __init__(self):
        self.verified = []
        self.evacuated = []
        self.expired = []
        self.left = []
        self.directory = Directory(
            lambda endpoint, identity, name: Pool(name, admission=None, counter=None, relay_concurrency=1),
            lambda endpoint: self.verified.append(endpoint.id),
            self.evacuated.append,
            self.expired.extend,
            lambda endpoint: self.left.append(endpoint.id),
        )

    def add(self, name, *, model=None, lora=()):
        adapters = [{"name": adapter, "path": f"/{adapter}"} for adapter in lora]
        settings = ModelSettings.model_validate({"name": model, "endpoints": [{"url": "http://x"}], "lora": adapters})
        watch = SimpleNamespace(on_trial=False, dispatched=lambda *_: None, finished=lambda *_: None)
        endpoint = Endpoint(EndpointId(name), f"http://{name}", None, settings, watch)
        self.directory.add(endpoint)
        return endpoint

    def up(self, endpoint, who, model=None):
        self.directory.up(endpoint.id, model or who.names[0], who)


@pytest.fixture
def world():
    return World()


async def test_an_endpoint_joins_the_pool_of_its_model(world):
    first, second, other = world.add("a"), world.add("b"), world.add("c")
    assert world.directory.undiscovered("m")
    world.up(first, identity("m", "alias"))
    world.up(second, identity("m"))
    world.up(other, identity("n"))
    directory = world.directory
    assert not directory.undiscovered("m")
    assert set(directory.pools) == {"m", "n"}
    assert directory.lookup("alias") is directory.lookup("m") is first.pool is second.pool
    assert directory.lookup("n") is other.pool
    assert directory.lookup("other") is None
    assert directory.lookup(None) is None, "with several models, one has to be named"
    assert world.verified == ["a", "b", "c"]


async def test_the_only_model_needs_no_name(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m"))
    assert world.directory.lookup(None) is endpoint.pool


async def test_a_model_is_found_by_its_own_name_and_its_endpoints(world):
    endpoint = world.add("a", model="mine")
    world.up(endpoint, identity("m"), model="mine")
    assert endpoint.pool.name == "mine"
    assert world.directory.lookup("mine") is world.directory.lookup("m") is endpoint.pool


async def test_adapters_come_and_go(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m", loras=("adapter",)))
    assert world.directory.lookup("adapter") is endpoint.pool
    world.up(endpoint, identity("m"))
    assert world.directory.lookup("adapter") is None
    assert world.verified == ["a"], "it was up all the time"


async def test_an_adapter_is_a_flow_where_its_operator_wants_it_so(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m", loras=("x",)))
    assert endpoint.pool.flow_of("x") is None
    endpoint.settings = endpoint.settings.model_copy(update={"lora_flows": True})
    assert [endpoint.pool.flow_of(name) for name in ("x", "m", None)] == ["adapter x", None, None]


async def test_an_endpoint_that_serves_another_model_changes_its_pool(world):
    endpoint, stays = world.add("a"), world.add("b")
    world.up(endpoint, identity("m"))
    world.up(stays, identity("m"))
    before = endpoint.pool
    world.up(endpoint, identity("n"))
    assert endpoint.pool.name == "n"
    assert list(before.endpoints) == ["b"]
    assert world.directory.lookup("m") is before


async def test_a_model_that_nobody_serves_any_more_is_gone(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m", "alias"))
    before = endpoint.pool
    world.up(endpoint, identity("n"))
    directory = world.directory
    assert list(directory.pools) == ["n"]
    assert directory.lookup("m") is directory.lookup("alias") is None
    assert directory.lookup(None) is endpoint.pool, "again it is the only one"
    world.up(endpoint, identity("m"))
    assert directory.lookup("m") is endpoint.pool is not before


async def test_a_name_of_two_models_stays_with_the_one_that_is_left(world):
    first, second = world.add("a"), world.add("b")
    world.up(first, identity("m", "default"))
    world.up(second, identity("n", "default"))
    assert world.directory.lookup("default") is first.pool
    world.up(first, identity("other"))
    assert world.directory.lookup("default") is second.pool


async def test_an_adapter_is_that_of_the_model_it_is_configured_for_once_that_has_it(world):
    first, second = world.add("a"), world.add("b", lora=("sql", "n", "late"))
    world.up(first, identity("m", loras=("sql", "late")))
    world.up(second, identity("k", loras=("sql", "n")))
    assert world.directory.lookup("sql") is second.pool
    assert world.directory.lookup("late") is first.pool, "the other one loads it"
    world.up(world.add("c", model="n"), identity("n"), model="n")
    assert world.directory.lookup("n").name == "n", "no adapter takes a model's own name"


async def test_no_adapter_takes_the_requests_of_a_model_of_its_name(world):
    first, second = world.add("a"), world.add("b")
    world.up(first, identity("m"))
    world.up(second, identity("n"))
    world.up(first, identity("m", loras=("n", "later")))
    assert world.directory.lookup("n") is second.pool
    third = world.add("c", model="later")
    world.up(first, identity("m", loras=("n", "later")))
    assert world.directory.lookup("later") is None, "its engine has yet to be reached"
    world.up(third, identity("k"), model="later")
    assert world.directory.lookup("later") is third.pool


async def test_an_endpoint_that_takes_no_traffic_keeps_what_it_has_until_that_is_taken_off(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m"))
    world.directory.down(endpoint.id)
    assert not endpoint.healthy
    assert list(endpoint.pool.endpoints) == ["a"]
    assert world.evacuated == []
    world.directory.evacuate(endpoint.id)
    assert world.evacuated == ["a"]
    world.up(endpoint, identity("m"))
    assert world.verified == ["a", "a"], "it may be another engine now"


async def test_requests_that_were_silent_for_too_long_are_ended(world):
    world.directory.expire([RequestId(1), RequestId(2)])
    assert world.expired == [1, 2]


async def test_an_endpoint_that_is_gone_is_known_no_more(world):
    first, second, never = world.add("a"), world.add("b"), world.add("c")
    world.up(first, identity("m"))
    world.up(second, identity("m", "alias"))
    pool = second.pool
    world.directory.gone(second.id)
    assert list(pool.endpoints) == ["a"]
    assert world.directory.lookup("m") is pool
    assert world.directory.lookup("alias") is None
    world.directory.gone(first.id)
    assert world.directory.pools == {}
    assert world.directory.lookup("m") is None
    waiting = asyncio.create_task(world.directory.find("m"))
    await asyncio.sleep(0)
    world.directory.gone(never.id)
    assert await waiting is None, "nobody is left who could serve it"
    assert world.directory.endpoints == {}
    assert world.left == ["b", "a", "c"]


async def test_a_model_is_waited_for_while_an_endpoint_has_not_said_what_it_serves(world):
    first, second = world.add("a"), world.add("b")
    waiting = asyncio.create_task(world.directory.find("m"))
    await asyncio.sleep(0)
    world.up(first, identity("other"))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.up(second, identity("m"))
    assert await waiting is second.pool
    assert await world.directory.find("unknown") is None, "all are known: there is nothing to wait for"


async def test_an_endpoint_is_waited_for(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m"))
    await world.directory.wait_for_endpoint(endpoint.pool)
    world.directory.down(endpoint.id)
    waiting = asyncio.create_task(world.directory.wait_for_endpoint(endpoint.pool))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.up(endpoint, identity("m"))
    await waiting
    world.directory.down(endpoint.id)
    waiting = asyncio.create_task(world.directory.wait_for_endpoint(endpoint.pool))
    await asyncio.sleep(0)
    world.directory.gone(endpoint.id)
    await waiting  # no other will ever come to this pool


async def test_a_pool_takes_what_one_of_its_endpoints_takes(world):
    old, new = world.add("a"), world.add("b")
    world.up(old, identity("m", length=100))
    assert old.pool.takes(1, 100), "until it was asked it refuses by itself"
    old.clamps = False
    assert old.pool.takes(1, 99)
    assert not old.pool.takes(1, 100)
    world.up(new, identity("m", length=50))
    new.clamps = True
    assert old.pool.takes(1, 100), "the new one clamps"
    assert not old.pool.takes(1, 101), "a vLLM clamps no limit over its whole length"
    world.up(world.add("c"), identity("m", length=50, kind="llama-server"))
    assert old.pool.takes(1, 32_000)
    assert old.pool.max_model_len == 100


async def test_a_pool_knows_which_of_different_lengths_take_a_request(world):
    short, long, away = (world.add(name) for name in "abc")
    world.up(short, identity("m", length=100))
    world.up(long, identity("m", length=1000))
    world.up(away, identity("m", length=4000))
    world.directory.down(away.id)
    pool = short.pool
    assert [pool.shortest_for(prompt) for prompt in (99, 100, 1000, 4000)] == [100, 1000, 4000, 4000]

    def healthy_for(prompt, least_length=0, whole_length=0):
        return pool.healthy_for(Demand((prompt,), 1, 1, least_length, whole_length))

    assert healthy_for(99) == healthy_for(50, 100) == healthy_for(50, 0, 100) == [short, long]
    assert healthy_for(100) == healthy_for(50, 101) == healthy_for(50, 0, 101) == [long]
    assert healthy_for(50, 60, 1001) == [short, long], "the one that has room for all of it is away"
    assert healthy_for(1000) == []


async def test_a_pool_knows_what_length_takes_an_output_limit(world):
    old, new, llama = world.add("a"), world.add("b"), world.add("c")
    world.up(llama, identity("m", length=50, kind="llama-server"))
    assert llama.pool.least_length(10, 30) == 0
    world.up(new, identity("m", length=100))
    assert llama.pool.least_length(10, 30) == 30, "until it was asked it is taken for one that clamps"
    world.up(old, identity("m", length=100))
    old.clamps = False
    assert llama.pool.least_length(10, 30) == 40


async def test_relayed_requests_take_turns(world):
    endpoints = [world.add(name) for name in "abc"]
    for endpoint in endpoints:
        world.up(endpoint, identity("m"))
    pool = endpoints[0].pool
    firsts = []
    for _ in range(6):
        await world.directory.wait_for_endpoint(pool)  # to look is not to take a turn
        firsts.append(pool.in_turn(0.0)[0].id)
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]
    world.directory.down(endpoints[1].id)
    assert {endpoint.id for endpoint in pool.in_turn(0.0)} == {"a", "c"}


async def test_an_endpoint_that_fails_on_what_is_relayed_comes_last_and_gets_one_after_a_while(world):
    a, b = (world.add(name) for name in "ab")
    for endpoint in (a, b):
        world.up(endpoint, identity("m"))

    def firsts(now):
        return {a.pool.in_turn(now)[0].id for _ in range(4)}

    for _ in range(TUNING.failing_after):
        assert firsts(10.0) == {"a", "b"}
        a.note_answer(10.0, failed=True)
    assert firsts(10.0) == {"b"}
    assert firsts(10.0 + TUNING.failing_span) == {"a", "b"}
    with a.relaying(1), b.relaying(2):
        assert firsts(10.0 + TUNING.failing_span) == {"a", "b"}, "what it is at from before says nothing"
    with a.trying(15.0, again=True):
        assert firsts(15.0) == {"a", "b"}
    with a.trying(15.0, again=False):
        assert firsts(15.0) == {"b"}, "one tries it"
    assert firsts(15.0) == {"b"}
    a.spared_until = 15.0
    with pytest.raises(asyncio.CancelledError), a.trying(15.0, again=False):
        raise asyncio.CancelledError
    assert firsts(15.0) == {"a", "b"}, "its client left"
    trying = a.trying(16.0, again=False)
    trying.__enter__()
    a.note_answer(17.0, failed=True)
    left = asyncio.CancelledError()
    assert not trying.__exit__(type(left), left, None)
    assert firsts(17.0) == {"b"}, "another failed meanwhile"
    a.note_answer(20.0, failed=False)
    assert firsts(20.0) == {"a", "b"}


async def test_the_endpoint_with_the_fewest_relayed_requests_comes_first_and_one_on_trial_gets_one(world):
    a, b = (world.add(name) for name in "ab")
    for endpoint in (a, b):
        world.up(endpoint, identity("m"))
    pool = a.pool
    with a.relaying(1), a.relaying(2), b.relaying(3):
        assert [[e.id for e in pool.in_turn(0.0)] for _ in range(2)] == [["b", "a"]] * 2
        b.watch.on_trial = True
        assert [e.id for e in pool.in_turn(0.0)] == ["a", "b"]
    with a.relaying(4):
        assert [e.id for e in pool.in_turn(0.0)] == ["b", "a"], "it has none yet"
    assert (a.relayed, b.relayed) == (0, 0)


def llama(name, *, length=400, slots=4):
    return Identity((name,), (), None, length, "b7", kind="llama-server", slots=slots)


async def test_where_a_full_cache_kills_all_a_request_without_a_limit_gets_its_slots_share(world):
    vllm, first, second = world.add("a"), world.add("b"), world.add("c")
    world.up(vllm, identity("m"))
    assert vllm.pool.default_max_tokens(30) is None
    world.up(first, llama("m"))
    assert vllm.pool.default_max_tokens(30) == 70
    assert vllm.pool.default_max_tokens(300) == 25, "at least a quarter of the share"
    world.up(second, llama("m", slots=None))
    assert vllm.pool.default_max_tokens(30) == 70, "the least of all that may serve it"


async def test_where_one_engine_reads_other_limits_its_pool_says_so(world):
    first, second = world.add("a"), world.add("b")
    world.up(first, identity("m"))
    assert first.pool.overriding == set()
    world.up(second, llama("m"))
    assert "n_predict" in first.pool.overriding
    assert not first.pool.caseless
    world.up(second, identity("m", kind="ollama"))
    assert first.pool.caseless
    assert first.pool.takes_band
    world.up(second, identity("m", kind="sglang"))
    assert not first.pool.takes_band


async def test_a_configured_default_limit_goes_before(world):
    one = world.add("a")
    one.settings = one.settings.model_copy(update={"default_max_tokens": 9})
    world.up(one, llama("m"))
    assert one.pool.default_max_tokens(30) == 9


async def test_engines_on_demand_are_known_by_their_settings(world):
    here = world.add("a", model="m")
    assert world.directory.undiscovered("other")
    here.on_demand = True
    assert world.directory.on_demand
    assert not world.directory.undiscovered("other")
    assert world.directory.undiscovered("m")
    assert world.directory.undiscovered(None)
    assert world.directory.starting("m") == world.directory.starting(None) == [here]
    world.add("b", model="n").on_demand = True
    assert world.directory.starting(None) == []


async def test_an_adapter_that_an_engine_on_demand_got_while_it_did_not_run_starts_it(world):
    endpoint = world.add("a", model="m")
    endpoint.on_demand = True
    world.up(endpoint, identity("m"), model="m")
    world.directory.down(endpoint.id)
    assert world.directory.lookup("sql") is None
    lora = [{"name": "sql", "path": "/sql"}]
    endpoint.settings = ModelSettings.model_validate({**endpoint.settings.model_dump(), "lora": lora})
    assert world.directory.lookup("sql") is endpoint.pool
    assert world.directory.lookup("other") is None
    world.up(endpoint, identity("m"), model="m")
    world.directory.down(endpoint.id)
    assert world.directory.lookup("sql") is None, "it could not load it"


async def test_who_waits_for_an_engine_hears_that_it_does_not_start(world):
    here = world.add("a", model="m")
    here.on_demand = True
    found = asyncio.create_task(world.directory.find("m"))
    await asyncio.sleep(0)
    world.directory.starts(here.id, 5.0, failed=False)
    assert here.ready_at == pytest.approx(asyncio.get_running_loop().time() + 5.0, abs=0.5)
    world.directory.starts(here.id, None, failed=True)
    with pytest.raises(NotStartedError):
        await found
    world.up(here, identity("m"))
    world.directory.down(here.id)
    waiting = asyncio.create_task(world.directory.wait_for_endpoint(here.pool))
    await asyncio.sleep(0)
    world.directory.starts(here.id, None, failed=True)
    with pytest.raises(NotStartedError):
        await waiting


async def test_an_engine_is_asked_about_lengths_again_only_if_it_is_another(world):
    endpoint = world.add("a")
    world.up(endpoint, identity("m", length=100))
    endpoint.clamps = False
    world.directory.down(endpoint.id)
    world.up(endpoint, identity("m", length=100))
    assert endpoint.clamps is False
    world.directory.down(endpoint.id)
    world.up(endpoint, identity("m", length=50))
    assert endpoint.clamps is None


async def test_an_engine_that_became_another_while_it_served_is_compared_and_asked_again(world):
    """As one behind a name that was pointed elsewhere."""
    endpoint = world.add("a")
    world.up(endpoint, identity("m"))
    endpoint.clamps = False
    world.up(endpoint, identity("m", loras=("sql",)))
    assert (world.verified, endpoint.clamps) == (["a"], False), "an adapter changes neither"
    world.up(endpoint, replace(identity("m"), root="org/another"))
    assert (world.verified, endpoint.clamps) == (["a", "a"], None)
    world.up(endpoint, replace(identity("n"), root="org/another"))
    assert (world.verified, endpoint.clamps) == (["a", "a", "a"], None), "its prompts are counted for another pool"
