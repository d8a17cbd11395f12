"""Gateways of a tier on machines of their own, as network namespaces, between which packets can be lost."""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from tests.integration.redis_servers import Server, valkey
from tests.integration.relaying import CHAT, body
from tests.integration.tiers import PLACES, Engine, Gateway, Load, Lost, Tier

LOOK = 0.05
"""Seconds between two looks at the shares."""
TOKENS = 50
"""Of an answer: a second of an engine's time."""
_NOBODY = "02:00:00:00:00:01"
"""The hardware address of no machine."""


def ip(*arguments: str) -> None:
    """Change the network.

    Raises:
        OSError: it cannot be changed here.
    """
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def allowed() -> bool:
    """Whether namespaces can be made here."""
    name = f"kvgate-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except OSError:
        return False
    return True


class Network:
    """A switch with machines: ours, which has the engine and the clients, one for Redis, and one for each gateway.

    A machine that is cut off from another sends what is for it to a hardware address that nobody has. So packets
    vanish without a word, both ways, also of connections that are open.
    """

    def __init__(self, gateways: int) -> None:
        self._switch = f"kv{os.getpid() % 10**7}"
        prefix = f"10.77.{os.getpid() % 250}"
        self.ours, self.redis = f"{prefix}.1", f"{prefix}.2"
        self.machines = {f"{prefix}.{10 + number}": f"{self._switch}-{number}" for number in range(gateways)}
        """Namespaces by address."""
        self._cut: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        ip("link", "add", self._switch, "type", "bridge")
        for address in (self.ours, self.redis):
            ip("address", "add", f"{address}/24", "dev", self._switch)
        ip("link", "set", self._switch, "up")
        for number, (address, machine) in enumerate(self.machines.items()):
            ip("netns", "add", machine)
            port = f"{self._switch}-{number}"
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", machine)
            ip("link", "set", port, "master", self._switch, "up")
            ip("-n", machine, "link", "set", "lo", "up")
            ip("-n", machine, "link", "set", "eth0", "up")
            ip("-n", machine, "address", "add", f"{address}/24", "dev", "eth0")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            with contextlib.suppress(OSError):
                ip("netns", "delete", machine)
        ip("link", "delete", self._switch)

    def cut(self, one: str, other: str) -> None:
        """Lose all packets between two addresses, one of them a gateway's."""
        for here, there in ((one, other), (other, one)):
            if here in self.machines:
                neighbour = (there, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
                ip("-n", self.machines[here], "neighbour", "replace", *neighbour)
                self._cut.append((here, there))

    def heal(self) -> None:
        """Lose nothing any more."""
        for here, there in self._cut:
            ip("-n", self.machines[here], "neighbour", "delete", there, "dev", "eth0")
        self._cut.clear()


class _Reachable(Engine):
    """An engine for other machines."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    async def listen(self, port: int = 0, host: str = "") -> None:
        await super().listen(port, host or self._host)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a partition.

    Attributes:
        load: what clients saw.
        owner: the gateway that decided before.
        most: the most sequences at once, from the cut on.
        shares: the largest sum of the shares of those that decided at one time.
        unready: gateways that said that they are not ready.
        refused: by them; the seconds that each request took which came then and was refused within a second.
    """

    load: Load
    owner: Gateway
    most: int
    shares: float
    unready: frozenset[Gateway]
    refused: Sequence[float]

    def lost(self, *allowed: Gateway) -> list[Lost]:
        """Requests that failed, but those of `allowed` that were told to come again, as nobody decides for them."""
        return [one for one in self.load.lost if one.gateway not in allowed or '"no_endpoint"' not in one.why]

    def report(self, what: str) -> None:
        """Say how it went."""
        self.load.report(what)
        print(
            f"   {self.most} sequences at most, with places for {PLACES}: {self.most / PLACES:.2f};"
            f" shares of {self.shares:.2f} at once; {len(self.unready)} not ready,"
            f" which refused {len(self.refused)} at once"
        )


class Parted:
    """A tier, each gateway on a machine of its own."""

    def __init__(self, made: Tier, network: Network) -> None:
        self.made, self.network = made, network

    async def roles(self) -> tuple[Gateway, list[Gateway]]:
        """The owner, and the others."""
        owner, _ = await self.made.settled(*self.made.gateways)
        return owner, [gateway for gateway in self.made.gateways if gateway is not owner]

    async def parted(self, cuts: Sequence[tuple[str, str]], seconds: float, owner: Gateway) -> Outcome:
        """Put a load on all, lose packets for so long, and wait until all is well again."""
        made, engine = self.made, self.made.engine
        sums: list[float] = []
        unready, refused = set[Gateway](), list[float]()
        async with made.load(*made.gateways, clients=6, tokens=TOKENS) as load:
            engine.most = 0
            watching = asyncio.create_task(self._watch(sums, unready, refused))
            for one, other in cuts:
                self.network.cut(one, other)
            await asyncio.sleep(seconds)
            self.network.heal()
            await made.settled(*made.gateways)
            await load.more(5)
            watching.cancel()
        return Outcome(load, owner, engine.most, max(sums), frozenset(unready), refused)

    async def _watch(self, sums: list[float], unready: set[Gateway], refused: list[float]) -> None:
        """Look at each gateway again and again; one that does not answer in a second does not decide now."""
        shares: dict[Gateway, float] = {}

        async def look(gateway: Gateway) -> None:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=1, trust_env=False) as client:
                while True:
                    shares[gateway] = 0.0
                    with contextlib.suppress(httpx.TransportError):
                        if not (await client.get("/readyz")).is_success:
                            unready.add(gateway)
                            began = time.monotonic()
                            if '"no_endpoint"' in (await client.post(CHAT, json=body())).text:
                                refused.append(time.monotonic() - began)
                        said = (await client.get("/metrics")).text
                        found = [line for line in said.splitlines() if line.startswith("kvgate_tier_share ")]
                        shares[gateway] = float(found[0].rpartition(" ")[2]) if found else 0.0
                    sums.append(sum(shares.values()))
                    await asyncio.sleep(LOOK)

        async with asyncio.TaskGroup() as looking:
            for gateway in self.made.gateways:
                looking.create_task(look(gateway))


@contextlib.contextmanager
def _redis(folder: Path, host: str) -> Iterator[Server]:
    server = Server(valkey(), folder, "--protected-mode", "no", host=host)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def parted_tier(folder: Path, count: int) -> AsyncIterator[Parted]:
    """A tier of so many gateways."""
    with Network(count) as network, _redis(folder, network.redis) as redis:
        async with _Reachable(network.ours) as engine, httpx.AsyncClient(timeout=60, trust_env=False) as client:
            made = Tier(folder, engine, redis, client)
            try:
                for host, machine in network.machines.items():
                    gateway = made.gateway(host=host)
                    gateway.argv = ["ip", "netns", "exec", machine, *gateway.argv]
                    gateway.start()
                await made.settled(*made.gateways)
                yield Parted(made, network)
            finally:
                for gateway in made.gateways:
                    gateway.close()
