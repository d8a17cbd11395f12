"""A Redis in the world of `processes.py`, as its client library shows it to a `RedisLease`."""

import asyncio
from hashlib import sha1
from types import SimpleNamespace
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError

from gateway.tier.election import Claim
from gateway.tier.redis_lease import _CLAIM, _LEAVE
from tests.fakes.processes import Process, World
from tests.fakes.redis_lease import FakeRedisLease


class FakeRedis(Process):
    """The server. What reaches it while it is paused is taken when it goes on, though nobody waits for it any more."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "redis")
        self.kept = FakeRedisLease()
        self.away = False
        self.scripts: set[str] = set()

    def client(self, **_: object) -> "Client":
        assert self.world.current is not None
        return Client(self, self.world.current)

    def restart(self) -> None:
        """It has no disk."""
        self.paused = self.away = False
        self.inbox.clear()
        self.scripts.clear()
        self.kept.forget()

    def take(self, script: str, me: str, *rest: str) -> list[str]:
        if script == _LEAVE:
            self.kept.leave(me)
            return []
        assert script == _CLAIM
        beat, entry, seen, least, over, *forget = rest
        address, _, mark = entry.rpartition(" ")
        claim = Claim(int(beat), 0.0, int(seen), int(least), over, tuple(forget))
        kept = self.kept.ask(me, address, mark, claim)
        flat = ["highest", str(kept.highest)]
        if kept.holder:
            flat += ["holder", kept.holder, "beat", str(kept.beat), "epoch", str(kept.epoch)]
        for name, member in kept.members.items():
            flat += [f"member:{name}", f"{member.beat} {member.address} {member.mark}"]
        return flat


class Client:
    """What a candidate has of it."""

    def __init__(self, redis: FakeRedis, process: Process) -> None:
        self._redis, self._process = redis, process
        self.connection_pool = SimpleNamespace(disconnect=self._disconnect)

    async def _disconnect(self) -> None:
        pass

    async def evalsha(self, sha: str, _keys: int, _key: str, *arguments: str) -> Any:
        if sha not in self._redis.scripts:
            raise NoScriptError
        return await self._asked(SCRIPTS[sha], arguments)

    async def eval(self, script: str, _keys: int, _key: str, *arguments: str) -> Any:
        self._redis.scripts.add(_sha(script))
        return await self._asked(script, arguments)

    async def _asked(self, script: str, arguments: tuple[str, ...]) -> Any:
        redis, process, world = self._redis, self._process, self._redis.world
        if redis.away:
            raise RedisConnectionError("nobody is there")
        answer: asyncio.Future[list[str]] = process.loop.create_future()

        def take() -> None:
            if not redis.away:
                found = redis.take(script, *arguments)
                process.receive(world.now + self._way, lambda: None if answer.done() else answer.set_result(found))

        redis.receive(world.now + self._way, take)
        return await answer

    @property
    def _way(self) -> float:
        return self._redis.world.way(self._process.machine, self._redis.machine)


def _sha(script: str) -> str:
    return sha1(script.encode(), usedforsecurity=False).hexdigest()


SCRIPTS = {_sha(script): script for script in (_CLAIM, _LEAVE)}
