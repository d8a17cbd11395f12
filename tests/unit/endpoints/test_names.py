import contextlib

import pytest

from gateway.config.discovery import DiscoverySettings
from gateway.endpoints import names
from gateway.endpoints.names import NoAnswerError, endpoints_behind
from tests.fakes.name_server import NameServer


@contextlib.asynccontextmanager
async def asking(records, *, tcp=True, **source):
    server = NameServer()
    server.records, server.ttl = records, 7
    async with server.serving(tcp=tcp) as address:
        yield server, DiscoverySettings(nameserver=address, **source)


async def behind(records, **source):
    async with asking(records, **source) as (_, settings):
        return await endpoints_behind(settings)


async def test_every_address_of_a_name_is_an_endpoint():
    records = {("vllm.test.", "A"): ["10.0.0.2", "10.0.0.1"]}
    assert await behind(records, dns="http://vllm.test:8000") == (["http://10.0.0.1:8000/", "http://10.0.0.2:8000/"], 7)
    assert await behind(records, dns="https://vllm.test/base") == (
        ["https://10.0.0.1/base", "https://10.0.0.2/base"],
        7,
    )


async def test_an_engine_with_an_address_of_both_families_is_one_endpoint():
    both = {("vllm.test.", "A"): ["10.0.0.1"], ("vllm.test.", "AAAA"): ["fd00::1"]}
    assert (await behind(both, dns="http://vllm.test:8000"))[0] == ["http://10.0.0.1:8000/"]
    six = {("vllm.test.", "AAAA"): ["fd00::1"]}
    assert (await behind(six, dns="http://vllm.test:8000"))[0] == ["http://[fd00::1]:8000/"]


async def test_srv_records_bring_hosts_and_ports():
    records = {("_vllm._tcp.test.", "SRV"): ["0 0 8001 b.test.", "10 5 8000 a.test."]}
    found = ["http://a.test:8000", "http://b.test:8001"]
    assert await behind(records, srv="_vllm._tcp.test") == (found, 7)
    assert (await behind(records, srv="https://_vllm._tcp.test"))[0] == [url.replace("http", "https") for url in found]


async def test_a_server_that_tells_only_some_over_udp_is_asked_for_all():
    """They would come and go with each answer. Consul tells three, and does not say that there are more."""
    records = {("vllm.test.", "A"): [f"10.0.0.{number}" for number in range(1, 8)]}
    async with asking(records, dns="http://vllm.test:8000") as (server, settings):
        server.most = 3
        for _ in range(3):
            assert len((await endpoints_behind(settings))[0]) == 7


async def test_a_server_that_answers_over_udp_alone_is_heard():
    records = {("vllm.test.", "A"): ["10.0.0.1"]}
    async with asking(records, tcp=False, dns="http://vllm.test:8000") as (_, settings):
        assert (await endpoints_behind(settings))[0] == ["http://10.0.0.1:8000/"]


@pytest.mark.parametrize(
    ("records", "source", "reason"),
    [
        ({}, {"dns": "http://vllm.test:1"}, "there is no such name"),
        ({("vllm.test.", "TXT"): ["x"]}, {"dns": "http://vllm.test:1"}, "it has no address"),
        ({("_a._tcp.test.", "TXT"): ["x"]}, {"srv": "_a._tcp.test"}, "it has no SRV record"),
        ({("_a._tcp.test.", "SRV"): ["0 0 0 ."]}, {"srv": "_a._tcp.test"}, "it has no SRV record"),
    ],
)
async def test_an_answer_without_endpoints_is_none(records, source, reason):
    with pytest.raises(NoAnswerError, match=reason):
        await behind(records, **source)


async def test_a_silent_name_server_is_waited_for_so_long_and_no_longer(monkeypatch):
    monkeypatch.setattr(names, "_TIMEOUT", 0.1)
    async with asking({}, dns="http://vllm.test:1") as (server, settings):
        server.silent = True
        with pytest.raises(NoAnswerError):
            await endpoints_behind(settings)
        assert server.asked
