import asyncio
import contextlib

from structlog.testing import capture_logs

from gateway.tier.campaign import Campaign, tier_state
from gateway.tier.election import Election, Standing, Terms
from gateway.tier.epoch import Epoch
from gateway.tier.redis_lease import RedisLeaseError
from tests.fakes.redis_lease import FakeRedisLease
from tests.until import until

TERMS = Terms(beat=0.02, timeout=0.02, term=0.1, patience=0.12, grace=0.2)


class Redis:
    """The Redis as a campaign asks it."""

    def __init__(self, kept=None):
        self.kept = kept or FakeRedisLease()
        self.fails: RedisLeaseError | None = None
        self.asked = 0
        self.closed = False
        self.deciding = lambda: False
        self.decided_last: bool | None = None

    async def ask(self, claim):
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return self.kept.ask("a", "a:1", "k", claim)

    async def leave(self):
        self.decided_last = self.deciding()
        if self.fails is not None:
            raise self.fails
        self.kept.leave("a")

    async def close(self):
        self.closed = True


@contextlib.asynccontextmanager
async def campaign(redis):
    now = asyncio.get_running_loop().time()
    election = Election("a", "a:1", "k", members=2, fallback_share=None, now=now, terms=TERMS)
    views = []
    running = Campaign(election, redis, views.append, asyncio.get_running_loop().time)
    running.start()
    try:
        yield running, views, election
    finally:
        await running.stop()


async def test_it_takes_a_lease_holds_it_and_gives_it_back():
    redis = Redis()
    async with campaign(redis) as (running, views, election):
        await until(running.may_decide)
        redis.deciding = running.may_decide
        asked = redis.asked
        await until(lambda: redis.asked > asked + 5)
        assert running.may_decide()
        assert [view.standing for view in views][-1] is Standing.OWNING
        assert len(views) <= 3, "told once for each change"
        state = tier_state(election, asyncio.get_running_loop().time())
        assert (state.role, state.id, state.owner, state.epoch, state.gateways) == ("owner", "a", "a", 1, 1)
        assert 0 < state.lease_seconds <= TERMS.term
    assert redis.decided_last is False, "the next one decides as soon as it is given back"
    assert redis.kept.holder == "-"
    assert redis.closed


async def test_what_becomes_of_redis_is_told_once(caplog):
    redis = Redis()
    async with campaign(redis) as (running, views, election):
        await until(running.may_decide)
        redis.fails = RedisLeaseError("away")
        await until(lambda: running.view.standing is Standing.CUT_OFF)
        assert tier_state(election, asyncio.get_running_loop().time()).redis is False
        redis.fails = None
        await until(lambda: running.view.standing is Standing.OWNING)
        standings = [view.standing for view in views]
        assert Standing.CUT_OFF in standings
    assert redis.closed


async def test_a_redis_that_denies_is_told_after_one_that_was_late():
    redis = Redis()
    redis.fails = RedisLeaseError("late")
    with capture_logs() as logs:
        async with campaign(redis):
            for fails in (RedisLeaseError("late"), RedisLeaseError("no", denied=True), RedisLeaseError("late")):
                redis.fails, asked = fails, redis.asked
                await until(lambda asked=asked: redis.asked > asked + 3)
    told = [(line["reason"], line["denied"]) for line in logs if line["event"] == "Redis of the tier cannot be asked"]
    assert told == [("late", False), ("no", True)]


async def test_an_error_that_nobody_thought_of_does_not_end_the_election(monkeypatch):
    monkeypatch.setattr("gateway.runtime.background.FIRST_PAUSE", 0.01)
    redis = Redis()
    async with campaign(redis) as (running, _, _):
        await until(running.may_decide)
        redis.fails = RuntimeError("what is this?")
        await until(lambda: not running.may_decide())
        redis.fails = None
        await until(running.may_decide)


async def test_a_redis_that_is_gone_keeps_nobody_from_ending():
    redis = Redis()
    redis.fails = RedisLeaseError("away")
    async with campaign(redis) as (running, _, election):
        await until(lambda: running.view.standing is Standing.ALONE)
        state = tier_state(election, asyncio.get_running_loop().time())
        assert (state.role, state.share, state.redis) == ("alone", 0.5, False)
        running.followed()
        assert running.view.standing is Standing.STANDING_BY
    assert redis.closed


async def test_it_ends_though_a_cancellation_is_lost_as_redis_is_asked():
    class Deaf(Redis):
        async def ask(self, claim):
            if not self.asked:
                self.asked += 1
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            return await super().ask(claim)

    redis = Deaf()
    async with asyncio.timeout(60), campaign(redis):
        await until(lambda: redis.asked)
    assert redis.closed


async def test_a_higher_epoch_is_claimed_above_at_once():
    redis = Redis()
    async with campaign(redis) as (running, views, _):
        await until(running.may_decide)
        running.heard(Epoch(7, "z"))
        assert views[-1].standing is Standing.STANDING_BY
        assert not running.may_decide()
        await until(lambda: running.view.epoch == Epoch(8, "a"))


async def test_a_front_names_the_owner_it_follows():
    redis = Redis()
    owner = Election("b", "b:1", "k", members=2, fallback_share=None, now=0.0, terms=TERMS)
    for now in (0.0, 1.0):
        redis.kept.ask("b", "b:1", "k", owner.claim(now))
    claim = owner.claim(2.0)
    owner.answered(claim, redis.kept.ask("b", "b:1", "k", claim), 2.0)
    redis.kept.holder, redis.kept.beat, redis.kept.epoch = "b", 3, 4
    async with campaign(redis) as (running, views, election):
        await until(lambda: views and views[-1].address == "b:1")
        state = tier_state(election, asyncio.get_running_loop().time())
        assert (state.role, state.owner, state.epoch, state.lease_seconds) == ("front", "b", 4, None)
        assert not running.may_decide()
