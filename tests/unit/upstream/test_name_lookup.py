import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from gateway.upstream.interface import ConnectFailedError
from gateway.upstream.name_lookup import NameLookup
from tests.unit.upstream.endpoint import Server, fetch, upstream
from tests.until import until

SILENT = "nobody-answers.test"


class Resolver:
    """Names with addresses, and those that no name server answers for until `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.silent = {SILENT}
        self.known = {"both.test": ["127.0.0.2", "127.0.0.1"], "engine.test": ["127.0.0.1"]}
        self.asked: list[str] = []

    def __call__(self, host: str, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.asked.append(host)
        if host in self.silent:
            self.go.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in self.known[host]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.go.set()


async def test_a_name_that_nobody_answers_for_keeps_no_other_waiting(server: Server, resolver: Resolver) -> None:
    async with upstream() as client, asyncio.timeout(60):
        silent = [asyncio.create_task(fetch(client, f"http://{SILENT}:1")) for _ in range(100)]
        await until(lambda: SILENT in resolver.asked)
        assert await fetch(client, server.url.replace("127.0.0.1", "engine.test")) == b"ok"
        resolver.go.set()
        for failed in await asyncio.gather(*silent, return_exceptions=True):
            assert isinstance(failed, ConnectFailedError)
            assert "Temporary failure in name resolution" in str(failed)
    assert resolver.asked.count(SILENT) == 1


async def test_who_gives_up_leaves_the_lookup_to_the_others(resolver: Resolver) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    names = NameLookup()
    async with asyncio.timeout(60):
        first, second = [asyncio.create_task(names.addresses(SILENT)) for _ in range(2)]
        await until(lambda: SILENT in resolver.asked)
        first.cancel()
        await asyncio.sleep(0)
        resolver.go.set()
        with pytest.raises(OSError, match="Temporary failure"):
            await second
        assert await names.addresses("engine.test") == ("127.0.0.1",)
        with pytest.raises(OSError, match="Temporary failure"):
            await names.addresses(SILENT)  # asked anew
    assert resolver.asked == [SILENT, "engine.test", SILENT]
    assert not complaints


@pytest.mark.usefixtures("hurried")
async def test_a_name_keeps_its_addresses_while_name_servers_are_silent_or_fail(resolver: Resolver) -> None:
    names = NameLookup()
    assert await names.addresses("engine.test") == ("127.0.0.1",)
    resolver.silent.add("engine.test")
    for _ in range(2):
        assert await names.addresses("engine.test") == ("127.0.0.1",)
    resolver.go.set()
    for _ in range(2):
        assert await names.addresses("engine.test") == ("127.0.0.1",)


async def test_a_name_has_other_addresses_or_none_once_a_name_server_says_so(resolver: Resolver) -> None:
    names = NameLookup()

    async def found() -> object:
        try:
            return await names.addresses("engine.test")
        except OSError as error:
            return str(error)

    async def moved() -> bool:
        return await found() == ("127.0.0.2",)

    async def gone() -> bool:
        return "Name or service not known" in str(await found())

    assert await found() == ("127.0.0.1",)
    resolver.known["engine.test"] = ["127.0.0.2"]
    await until(moved)
    del resolver.known["engine.test"]
    await until(gone)


@pytest.mark.parametrize("forgets", [True, False])
async def test_addresses_that_take_no_connection_are_kept_no_longer(
    server: Server, resolver: Resolver, *, forgets: bool
) -> None:
    url = server.url.replace("127.0.0.1", "engine.test")
    resolver.go.set()
    async with upstream(keepalive=1e-9) as client:
        for _ in range(2):
            assert await fetch(client, url) == b"ok"
            resolver.silent.add("engine.test")
        if forgets:
            client.forget(url)
        else:
            with pytest.raises(ConnectFailedError, match="connection refused"):
                await fetch(client, "http://engine.test:1")
        with pytest.raises(ConnectFailedError, match="Temporary failure in name resolution"):
            await fetch(client, url)
    assert server.connections == 2


async def test_a_client_that_leaves_while_it_connects_says_nothing_of_an_address(
    server: Server, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url.replace("127.0.0.1", "engine.test")
    connecting = asyncio.Event()

    async def never(*_: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    async with upstream(keepalive=1e-9) as client:
        assert await fetch(client, url) == b"ok"
        resolver.silent.add("engine.test")
        resolver.go.set()
        with monkeypatch.context() as patch:
            patch.setattr("gateway.upstream.http_upstream._opened", never)
            leaving = asyncio.create_task(fetch(client, url))
            await connecting.wait()
            leaving.cancel()
            await asyncio.wait((leaving,))
        assert await fetch(client, url) == b"ok"


async def test_each_address_of_a_name_is_tried(server: Server, resolver: Resolver) -> None:
    """The server listens on the second one only."""
    async with upstream() as client:
        assert await fetch(client, server.url.replace("127.0.0.1", "both.test")) == b"ok"
        resolver.known["both.test"] = ["127.0.0.2", "127.0.0.3"]
        with pytest.raises(ConnectFailedError, match="refused") as failed:
            await fetch(client, "http://both.test:1")
    assert str(failed.value.__context__).count("[Errno 111]") == 2


async def test_an_address_that_answers_nothing_does_not_keep_the_next_from_being_tried(
    server: Server, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, silent = asyncio.get_running_loop(), list[str]()
    connect = loop.create_connection

    async def dropping(protocol: Callable[[], asyncio.Protocol], host: str, port: int) -> object:
        if host != "127.0.0.1":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                silent.append(host)
                raise
        return await connect(protocol, host, port)

    monkeypatch.setattr(loop, "create_connection", dropping)
    async with upstream() as client:
        assert await fetch(client, server.url.replace("127.0.0.1", "both.test")) == b"ok"
        assert silent == ["127.0.0.2"], "nobody waits for it any more"
        assert server.connections == 1


async def test_of_two_connections_made_at_once_one_is_closed(
    server: Server, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, made, both = asyncio.get_running_loop(), list[asyncio.BaseTransport](), asyncio.Event()
    connect = loop.create_connection

    async def together(protocol: Callable[[], asyncio.Protocol], _host: str, port: int) -> object:
        transport, made_protocol = await connect(protocol, "127.0.0.1", port)
        made.append(transport)
        if len(made) == 2:
            both.set()
        await both.wait()
        return transport, made_protocol

    monkeypatch.setattr(loop, "create_connection", together)
    async with upstream() as client:
        assert await fetch(client, server.url.replace("127.0.0.1", "both.test")) == b"ok"
        await until(lambda: sum(transport.is_closing() for transport in made) == 1)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
async def test_an_address_is_not_looked_up(address: str, resolver: Resolver) -> None:
    assert await NameLookup().addresses(address) == (address,)
    assert not resolver.asked


@pytest.mark.usefixtures("hurried")
async def test_a_name_without_an_answer_is_told_apart_from_an_engine_without_one(resolver: Resolver) -> None:
    async with upstream() as client:
        with pytest.raises(ConnectFailedError, match="no name resolution within 5 s"):
            await fetch(client, f"http://{SILENT}:1")


def test_a_loop_that_ends_meanwhile_is_not_told(resolver: Resolver) -> None:
    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await NameLookup().addresses(SILENT)

    asyncio.run(ask())
    threads = [thread for thread in threading.enumerate() if thread.name == "name lookup"]
    assert threads
    resolver.go.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
