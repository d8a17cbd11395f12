import json

import pytest

from gateway.endpoints.adapters import IN_USE, LOADED, LOADING, NO_ROUTE, UNLOADING, Adapters, Calls
from gateway.endpoints.replies import NoReply, Reply


class Engine:
    """Loads what it is asked to, or answers the next of `replies`, of which None is to do so."""

    def __init__(self, **loaded):
        self.loaded = loaded
        self.asked = []
        self.replies = []
        self.used = set()

    async def ask(self, path, body):
        asked = json.loads(body)
        name = asked["lora_name"]
        self.asked.append((path.rpartition("/")[2].split("_")[0], name))
        reply = self.replies.pop(0) if self.replies else None
        if reply is not None:
            return reply
        if "unload" in path:
            del self.loaded[name]
        else:
            self.loaded[name] = asked["lora_path"]
        return Reply(200, b"", 0.0)

    async def uses(self, name):
        return name in self.used

    async def lists(self):
        return self.loaded

    @property
    def calls(self):
        return Calls(self.ask, self.uses, self.lists)

    async def settle(self, adapters):
        return await adapters.settle(dict(self.loaded), self.calls)


async def test_what_it_lacks_is_loaded_and_what_others_loaded_stays():
    engine, adapters = Engine(theirs="/t"), Adapters("e", {"a": "/a", "b": "/b"})
    assert adapters.states({}) == {"a": LOADING, "b": LOADING}
    assert adapters.states({"a": "/a"}, "it is down") == {"a": LOADED, "b": "it is down"}
    assert await engine.settle(adapters)
    assert engine.asked == [("load", "a"), ("load", "b")]
    assert not await engine.settle(adapters)
    assert adapters.states(engine.loaded) == {"a": LOADED, "b": LOADED}


async def test_what_is_there_though_the_answer_was_lost_is_loaded():
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})

    async def lost(path, body):
        await engine.ask(path, body)
        return NoReply("the answer broke off")

    assert await adapters.settle({}, engine.calls._replace(ask=lost))
    assert adapters.states(engine.loaded) == {"a": LOADED}


async def test_other_settings_unload_what_is_no_longer_wanted():
    engine, adapters = Engine(a="/a", theirs="/t"), Adapters("e", {"a": "/a"})
    adapters.govern({"a": "/a"})
    assert adapters.wanted == {"a": "/a"}
    adapters.govern({"b": "/b"})
    assert adapters.wanted == {"b": "/b"}
    assert await engine.settle(adapters)
    assert engine.loaded == {"theirs": "/t", "b": "/b"}


async def test_what_an_operator_gives_or_takes_stands_over_the_settings():
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})
    adapters.give("b", "/b")
    await engine.settle(adapters)
    adapters.give("a", None)
    adapters.govern({"a": "/a"})
    assert adapters.states(engine.loaded) == {"a": UNLOADING, "b": LOADED}
    await engine.settle(adapters)
    assert engine.loaded == {"b": "/b"}
    adapters.give("a", "/a")
    await engine.settle(adapters)
    assert engine.loaded == {"b": "/b", "a": "/a"}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(404, b'{"detail":"Not Found"}', 0.0), NO_ROUTE),
        (Reply(405, b"{}", 0.0), NO_ROUTE),
        (Reply(404, b'{"error":{"message":"Loading lora a failed: No adapter found for /a"}}', 0.0),
         "Loading lora a failed: No adapter found for /a"),
        (Reply(500, b'{"error":{"message":"LoRA rank 64 is greater than max_lora_rank 16."}}', 0.0),
         "LoRA rank 64 is greater than max_lora_rank 16."),
        (NoReply("it broke off"), "it broke off"),
    ],
)  # fmt: skip
async def test_what_cannot_be_loaded_is_told_and_asked_for_again(reply, reason):
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})
    engine.replies = [reply]
    assert not await engine.settle(adapters)
    assert adapters.states({}) == {"a": reason}
    assert await engine.settle(adapters)
    assert adapters.states({"a": "/a"}) == {"a": LOADED}


async def test_what_an_operator_asks_for_again_is_no_longer_known_as_failed():
    engine, adapters = Engine(), Adapters("e", {})
    adapters.give("a", "/wrong")
    engine.replies = [Reply(500, b"no", 0.0)]
    await engine.settle(adapters)
    adapters.give("a", "/right")
    assert adapters.states({}) == {"a": LOADING}


async def test_one_from_another_path_takes_the_place_of_ours_and_of_what_an_operator_names():
    engine, adapters = Engine(theirs="/t"), Adapters("e", {"a": "/a", "theirs": "/ours"})
    await engine.settle(adapters)
    assert engine.loaded == {"theirs": "/t", "a": "/a"}, "it was there under this name"
    adapters.govern({"a": "/a2", "theirs": "/ours"})
    stays = "it was there, from /t: /kvgate/adapters/load replaces it by the one from /ours"
    assert adapters.states(engine.loaded) == {"a": LOADING, "theirs": stays}
    adapters.give("theirs", "/new")
    await engine.settle(adapters)
    assert engine.loaded == {"a": "/a2", "theirs": "/new"}
    engine.loaded["a"] = "/a"  # it was started again, as at first
    await engine.settle(adapters)
    assert engine.loaded["a"] == "/a2"
    assert not adapters.pending({"a": None, "theirs": None}), "an engine that tells no paths is believed"


REFUSED = Reply(500, b'{"error":{"message":"LoRA rank 64 is greater than max_lora_rank 16."}}', 0.0)
STAYS = "LoRA rank 64 is greater than max_lora_rank 16. The one from /a stays"


async def test_one_whose_successor_cannot_be_loaded_stays():
    engine, adapters = Engine(), Adapters("e", {"a": "/a", "b": "/b"})
    await engine.settle(adapters)
    adapters.give("a", "/high")
    engine.replies = [None, REFUSED]
    assert await engine.settle(adapters)
    assert engine.loaded == {"b": "/b", "a": "/a"}
    assert adapters.states(engine.loaded) == {"a": STAYS, "b": LOADED}
    assert not adapters.pending(engine.loaded), "it is not taken away once more to try the same"
    await Engine.settle(engine := Engine(), adapters)
    assert engine.loaded == {"a": "/a", "b": "/b"}, "nor where the engine starts anew"
    assert adapters.states(engine.loaded) == {"a": STAYS, "b": LOADED}
    adapters.give("a", "/better")
    assert adapters.states(engine.loaded) == {"a": LOADING, "b": LOADED}
    await engine.settle(adapters)
    assert engine.loaded == {"b": "/b", "a": "/better"}


async def test_one_that_stays_makes_way_when_the_settings_name_another_path():
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})
    await engine.settle(adapters)
    adapters.govern({"a": "/high"})
    engine.replies = [None, REFUSED]
    await engine.settle(adapters)
    adapters.govern({"a": "/high"})
    assert adapters.wanted == {"a": "/a"}, "a reload for something else"
    assert (engine.loaded, adapters.states(engine.loaded)) == ({"a": "/a"}, {"a": STAYS})
    adapters.govern({"a": "/better"})
    assert adapters.wanted == {"a": "/better"}
    await engine.settle(adapters)
    assert (engine.loaded, adapters.states(engine.loaded)) == ({"a": "/better"}, {"a": LOADED})


async def test_what_is_asked_for_while_one_is_refused_is_loaded_next():
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})
    await engine.settle(adapters)
    adapters.give("a", "/high")
    engine.replies = [None, REFUSED]
    refuse = engine.ask

    async def ask(path, body):
        reply = await refuse(path, body)
        if reply is REFUSED:
            adapters.give("a", "/better")
        return reply

    await adapters.settle(dict(engine.loaded), Calls(ask, engine.uses, engine.lists))
    assert adapters.states(engine.loaded) == {"a": LOADING}
    await engine.settle(adapters)
    assert engine.loaded == {"a": "/better"}


async def test_one_whose_requests_run_is_replaced_once_they_have_ended():
    engine, adapters = Engine(), Adapters("e", {"a": "/a"})
    await engine.settle(adapters)
    adapters.give("a", "/better")
    engine.used = {"a"}
    assert not await engine.settle(adapters)
    assert (engine.loaded, adapters.states(engine.loaded)) == ({"a": "/a"}, {"a": IN_USE})
    del engine.loaded["a"]  # by hand
    assert not await engine.settle(adapters)
    engine.used.clear()
    assert await engine.settle(adapters)
    assert (engine.loaded, adapters.states(engine.loaded)) == ({"a": "/better"}, {"a": LOADED})
    engine.used = {"a"}
    adapters.give("a", None)
    assert await engine.settle(adapters), "no other comes in its place"
    assert engine.loaded == {}


@pytest.mark.parametrize("told", ["/b", None])
async def test_an_engine_that_refuses_as_another_gateway_asked_first_is_as_it_was_wanted(told):
    """A vLLM answers the second with 400."""
    engine, adapters = Engine(a="/a"), Adapters("e", {"a": "/a"})
    adapters.govern({"b": "/b"})
    before, engine.loaded = engine.loaded, {"b": told}
    engine.replies = [REFUSED, REFUSED]
    assert await adapters.settle(before, engine.calls)
    assert adapters.states(engine.loaded) == {"b": LOADED}


async def test_an_engine_that_refuses_and_has_one_from_elsewhere_is_not_as_it_was_wanted():
    engine, adapters = Engine(), Adapters("e", {"b": "/b"})
    engine.loaded, engine.replies = {"b": "/another"}, [REFUSED]
    assert not await adapters.settle({}, engine.calls)
