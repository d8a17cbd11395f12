"""Over real unix sockets: a candidate's word to the fronts of its machine."""

import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from gateway.ops.state import TierState
from gateway.tier.channel import UnprovenError
from gateway.tier.epoch import Epoch
from gateway.tier.guide import Follow, Guide, Post, guide_path
from tests.until import until

TIER = TierState(role="front", id="c", standing="standing by").model_dump_json().encode()


def follow(address=None, *, here=False, ready=True, others=(), unreachable=False):
    return Follow(here, address, ready, TIER, others, unreachable)


@pytest.fixture
def path(tmp_path):
    return guide_path(tmp_path / "owner")


@contextlib.asynccontextmanager
async def post_at(path):
    heard = []
    post = Post(path, heard.append)
    await post.open()
    try:
        yield post, heard
    finally:
        post.close()


class Front:
    """A guide, whither it connects, and how often it was to turn."""

    def __init__(self, path):
        self.connected = []
        self.turns = 0
        self.epoch = None
        self.fails = None
        self.guide = Guide(path, here=self.here, elsewhere=self.elsewhere, turned=self.turned, following=self.following)

    async def here(self, protocol):
        self.connected.append("here")

    async def elsewhere(self, host, port, protocol):
        if self.fails is not None:
            raise self.fails
        self.connected.append((host, port))

    def turned(self):
        self.turns += 1

    def following(self):
        return self.epoch

    async def connect(self):
        await self.guide.connect(asyncio.Protocol)
        return self.connected[-1]


@contextlib.asynccontextmanager
async def front_at(path):
    front = Front(path)
    running = asyncio.create_task(front.guide.run())
    try:
        yield front
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_a_front_goes_where_its_candidate_sends_it(path):
    async with post_at(path) as (post, _), front_at(path) as front:
        post.tell(follow(here=True))
        await until(lambda: front.guide.ready)
        assert await front.connect() == "here"
        post.tell(follow("b:81"))
        await until(lambda: front.turns == 1)
        assert await front.connect() == ("b", 81)
        post.tell(follow("[::1]:82"))
        await until(lambda: front.turns == 2)
        assert await front.connect() == ("::1", 82)


async def test_a_front_that_comes_later_hears_the_last_word(path):
    async with post_at(path) as (post, _):
        post.tell(follow("b:81"))
        async with front_at(path) as front:
            await until(lambda: front.guide.ready)
            assert await front.connect() == ("b", 81)
            assert front.guide.tier == TierState.model_validate_json(TIER)


async def test_without_a_word_there_is_nobody_to_follow(path):
    async with front_at(path) as front:
        with pytest.raises(ConnectionError):
            await front.connect()
        assert (front.guide.ready, front.guide.tier) == (False, None)
        async with post_at(path) as (post, _):
            post.tell(follow(ready=False))
            await until(lambda: front.guide.tier)
            assert not front.guide.ready
            with pytest.raises(ConnectionError):
                await front.connect()


async def test_while_no_owner_is_known_the_old_one_is_not_left(path):
    async with post_at(path) as (post, _), front_at(path) as front:
        post.tell(follow("b:81"))
        await until(lambda: front.guide.ready)
        await front.connect()
        post.tell(follow(ready=False))
        await until(lambda: not front.guide.ready)
        post.tell(follow("b:81"))
        await until(lambda: front.guide.ready)
        assert front.turns == 0
        post.tell(follow(here=True))
        await until(lambda: front.turns == 1)


async def test_who_was_not_sent_anywhere_yet_has_nobody_to_leave(path):
    async with post_at(path) as (post, _), front_at(path) as front:
        post.tell(follow("b:81"))
        await until(lambda: front.guide.ready)
        post.tell(follow(here=True, ready=False))
        await until(lambda: not front.guide.ready)
        assert front.turns == 0


async def test_the_last_word_of_a_candidate_that_is_gone_counts_until_the_next_ones(path):
    async with front_at(path) as front:
        async with post_at(path) as (post, _):
            post.tell(follow("b:81"))
            await until(lambda: front.guide.ready)
        assert await front.connect() == ("b", 81)
        async with post_at(path) as (post, _):
            post.tell(follow("c:81"))
            await until(lambda: front.turns == 1)
            assert await front.connect() == ("c", 81)


async def test_a_front_whose_candidate_has_died_looks_for_the_next_owner_elsewhere(path):
    async with front_at(path) as front:
        async with post_at(path) as (post, _):
            post.tell(follow(here=True, others=("b:81", "c:81")))
            await until(lambda: front.guide.ready)
            assert await front.connect() == "here"
        await until(lambda: front.turns == 1)
        assert {await front.connect() for _ in range(2)} == {("b", 81), ("c", 81)}
        async with post_at(path) as (post, _):
            post.tell(follow(ready=False, others=("b:81", "c:81")))
            await until(lambda: not front.guide.ready)
            assert front.turns == 1, "the new candidate knows of none yet"
            with pytest.raises(ConnectionError):
                await front.connect()


async def test_only_a_candidate_that_lives_tells_that_an_owner_is_unreachable(path):
    async with front_at(path) as front:
        assert not front.guide.unreachable
        async with post_at(path) as (post, _):
            post.tell(follow("b:81", ready=False, unreachable=True))
            await until(lambda: front.guide.unreachable)
        await until(lambda: not front.guide.unreachable)


async def test_a_front_that_was_stopped_first_looks_itself_whether_the_owner_can_be_reached(path):
    """Its candidate heard nothing of it meanwhile, and takes the owner for unreachable."""
    async with post_at(path) as (post, heard), front_at(path) as front:
        front.epoch = Epoch(3, "b")
        post.tell(follow("b:81"))
        await until(lambda: heard)
        front.epoch = None
        post.tell(follow("b:81", ready=False, unreachable=True))
        await until(lambda: not front.guide.ready)
        assert not front.guide.unreachable
        await until(lambda: front.guide.unreachable)
        front.epoch = Epoch(3, "b")
        await until(lambda: not front.guide.unreachable)


async def test_the_candidate_hears_again_and_again_of_an_owner_elsewhere(path):
    async with post_at(path) as (post, heard), front_at(path) as front:
        post.tell(follow("b:81"))
        front.epoch = Epoch(3, "b")
        await until(lambda: len(heard) > 1)
        assert set(heard) == {Epoch(3, "b")}


async def test_that_its_own_candidate_decides_is_no_news_to_it(path):
    async with post_at(path) as (post, heard), front_at(path) as front:
        post.tell(follow(here=True))
        front.epoch = Epoch(3, "a")
        await until(lambda: front.guide.ready)
        asked = 0

        def following():
            nonlocal asked
            asked += 1
            return front.epoch

        front.guide._following = following
        await until(lambda: asked > 1)
        assert heard == []


async def test_an_owner_that_does_not_prove_itself_is_told_of_once(path, monkeypatch):
    monkeypatch.setattr("gateway.tier.guide.UNPROVEN", 0.01)
    async with post_at(path) as (post, _), front_at(path) as front:
        post.tell(follow("b:81"))
        await until(lambda: front.guide.ready)
        front.fails = UnprovenError("it has another key")
        with capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(OSError, match="another key"):
                    await front.connect()
        assert [(log["log_level"], log["reason"]) for log in logs] == [("error", "it has another key")]


async def test_a_word_that_is_the_same_is_not_said_again(path):
    async with post_at(path) as (post, _), front_at(path) as front:
        words = []
        take = front.guide._take
        front.guide._take = lambda line, messages: (words.extend(messages), take(line, messages))
        await until(lambda: post._lines)
        for word in (follow("b:81"), follow("b:81"), follow("c:81")):
            post.tell(word)
        await until(lambda: words and words[-1] == follow("c:81"))
        assert words == [follow("b:81"), follow("c:81")]
