"""The lease of a tier in Redis: who owns, under which epoch, and who is there.

One hash, `KEY`, which only the scripts below touch. Each candidate has a random id and numbers its questions
(*beats*). Nothing expires, and no clock is read: who is silent is known by a beat that stays the same.

| field       | value |
|-------------|-------|
| `holder`    | id of the candidate that has the lease; `-` after it gave it back |
| `beat`      | the number of its question that was granted last |
| `epoch`     | the number of its epoch |
| `highest`   | the highest number of an epoch that any candidate has reported |
| `member:ID` | of each candidate: its last beat, HOST:PORT, and the mark of its secret |

Every value is its candidate's own and absolute, so nothing leaks with one that dies. A question that comes after a
later one of the same candidate changes nothing. None of this is secret.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from hashlib import sha1
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.config.redis_url import RedisAddress
from gateway.tier.election import NOBODY, Claim, Kept, Member

KEY = "kvgate:tier"
_MEMBER = "member:"
_DENIALS = ("NOAUTH", "WRONGPASS", "NOPERM", "Authentication required")
_CLAIM = f"""
local key, me, beat, entry = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local seen, least, over = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local mine = redis.call('HGET', key, '{_MEMBER}' .. me)
if not mine or tonumber(string.match(mine, '^%d+')) < beat then
  redis.call('HSET', key, '{_MEMBER}' .. me, ARGV[2] .. ' ' .. entry)
  local kept = redis.call('HMGET', key, 'holder', 'beat', 'epoch', 'highest')
  local holder, epoch = kept[1] or '', tonumber(kept[3] or '0')
  local highest = math.max(tonumber(kept[4] or '0'), seen)
  if holder == me and epoch >= math.max(highest, least) then
    redis.call('HSET', key, 'beat', ARGV[2])
  elseif holder == me or holder == '{NOBODY}' or holder .. ' ' .. (kept[2] or '') == over then
    highest = highest + 1
    redis.call('HSET', key, 'holder', me, 'beat', ARGV[2], 'epoch', string.format('%.0f', highest))
  end
  redis.call('HSET', key, 'highest', string.format('%.0f', highest))
  for i = 7, #ARGV do
    local name, last = string.match(ARGV[i], '^(%S+) (%d+)$')
    local entered = redis.call('HGET', key, '{_MEMBER}' .. name)
    if entered and string.match(entered, '^%d+') == last and redis.call('HGET', key, 'holder') ~= name then
      redis.call('HDEL', key, '{_MEMBER}' .. name)
    end
  end
end
return redis.call('HGETALL', key)
"""
"""Arguments: id, beat, the rest of its entry, the highest number it has seen, the least that its own epoch must have,
the lease that it may replace, members to forget."""
_LEAVE = f"""
redis.call('HDEL', KEYS[1], '{_MEMBER}' .. ARGV[1])
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then
  redis.call('HSET', KEYS[1], 'holder', '{NOBODY}', 'beat', '0')
end
return 1
"""


class RedisLeaseError(Exception):
    """Redis did not do what it was asked. The message says why, without any secret.

    Attributes:
        denied: it answered, but lets this candidate do nothing: a wrong password, or a right that is missing.
    """

    def __init__(self, message: str, *, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


class RedisLease:
    """The lease in a tier's Redis, as one candidate asks for it. It connects when it asks, anew after a failure.

    Args:
        address: of the Redis or its Sentinels.
        me: the candidate's random id.
        entry: HOST:PORT of its machine, and the mark of its secret, with a space between them.
        timeout: longest time for a question, connecting included, in seconds.
    """

    def __init__(self, address: RedisAddress, me: str, entry: str, timeout: float) -> None:
        self._address = address
        self._me = me
        self._entry = entry
        self._timeout = timeout
        self._sentinel = _sentinel(address, timeout) if address.service else None
        self._options = _options(address, timeout)
        self._redis = self._client()
        self._closing: set[asyncio.Future[None]] = set()

    async def ask(self, claim: Claim) -> Kept:
        """Put a claim to Redis.

        Raises:
            RedisLeaseError: it did not answer in time, or refuses.
        """
        numbers = (claim.seen, claim.least)
        found = await self._run(_CLAIM, self._me, claim.beat, self._entry, *numbers, claim.over, *claim.forget)
        try:
            return _kept(found)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise RedisLeaseError(f"{KEY} in Redis holds what no kvgate wrote: {error}") from None

    async def leave(self) -> None:
        """Give the lease back, if this candidate has it, and be no member any more.

        Raises:
            RedisLeaseError: as `ask`.
        """
        await self._run(_LEAVE, self._me)

    async def close(self) -> None:
        """End the connections."""
        self._drop()
        await asyncio.gather(*self._closing)
        if self._sentinel is not None:
            await asyncio.gather(*(self._ended(sentinel) for sentinel in self._sentinel.sentinels))

    async def _run(self, script: str, *arguments: str | int) -> object:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._evaluated(script, arguments)
        except (AuthenticationError, NoPermissionError) as error:
            self._drop()
            raise RedisLeaseError(f"Redis does not let us in: {_reason(error)}", denied=True) from None
        except (TimeoutError, RedisTimeoutError):
            self._drop()
            raise RedisLeaseError(f"Redis did not answer in {self._timeout:g} s") from None
        except (RedisError, OSError, ValueError, RecursionError) as error:  # the last two: it is no Redis that answers
            self._drop()
            raise RedisLeaseError(_reason(error), denied=_denies(error)) from None

    async def _evaluated(self, script: str, arguments: Sequence[str | int]) -> object:
        sha = sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return await cast("Awaitable[object]", self._redis.evalsha(sha, 1, KEY, *map(str, arguments)))
        except NoScriptError:  # another Redis, or one that was started anew
            return await cast("Awaitable[object]", self._redis.eval(script, 1, KEY, *map(str, arguments)))

    def _drop(self) -> None:
        """Give the connection up: an answer that comes late must not be taken for that to the next question."""
        old, self._redis = self._redis, self._client()
        task = asyncio.ensure_future(self._ended(old))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _ended(self, client: Redis) -> None:
        with contextlib.suppress(TimeoutError, RedisError, OSError):
            async with asyncio.timeout(self._timeout):
                await client.connection_pool.disconnect()

    def _client(self) -> Redis:
        address = self._address
        if self._sentinel is not None:
            # Each has its Redis found by Sentinel anew.
            client: Redis = self._sentinel.master_for(address.service)
            return client
        if address.path:
            return Redis(unix_socket_path=address.path, **self._options)
        ((host, port),) = address.hosts
        return Redis(host=host, port=port, **self._options)


def _options(address: RedisAddress, timeout: float) -> dict[str, Any]:
    """How to connect with the Redis itself."""
    return {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        **_common(address, timeout),
    }


def _common(address: RedisAddress, timeout: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "decode_responses": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.tls:
        files = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
        checked = files.pop("ssl_check_hostname", "true").lower() not in {"false", "no", "0"}
        options |= {"ssl": True, "ssl_check_hostname": checked, **files}
    return options


def _sentinel(address: RedisAddress, timeout: float) -> Sentinel:
    """The Sentinels. One that does not answer leaves time to ask the others and the Redis itself."""
    own = _common(address, timeout / (len(address.hosts) + 1))
    names = {name.removeprefix("sentinel_"): value for name, value in address.options.items() if "sentinel_" in name}
    return Sentinel(  # type: ignore[no-untyped-call]
        address.hosts, sentinel_kwargs={**own, **names}, **_options(address, timeout)
    )


def _reason(error: Exception) -> str:
    """An error in a line; redis-py writes no password into one."""
    text = str(error) or type(error).__name__
    return " ".join(text.split())[:200]


def _denies(error: Exception) -> bool:
    """Whether Redis refuses this candidate, in the words of errors that have no class of their own."""
    return str(error).startswith(_DENIALS)


def _kept(found: object) -> Kept:
    flat = cast("Sequence[str]", found)
    fields: Mapping[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    return Kept(
        fields.get("holder", ""),
        int(fields.get("beat", 0)),
        int(fields.get("epoch", 0)),
        int(fields["highest"]),
        {name.removeprefix(_MEMBER): _member(entry) for name, entry in fields.items() if name.startswith(_MEMBER)},
    )


def _member(entry: str) -> Member:
    beat, address, mark = entry.split(" ")
    return Member(int(beat), address, mark)
