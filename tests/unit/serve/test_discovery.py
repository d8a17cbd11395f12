import asyncio
import json
import os

import pytest
import yaml

from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve import discovery
from gateway.serve.discovery import Discovery
from tests.clock import Clock
from tests.fakes.name_server import NameServer

NAME = ("vllm.test.", "A")


class Watched:
    """A discovery, what it had changed, and what it said."""

    def __init__(self, *models):
        self.clock = Clock(100.0)
        self.discovery = Discovery(Settings.model_validate({"models": list(models)}), self.clock)
        self.changes = []
        self.said = []
        self.wrong = None

    async def change(self, settings):
        if self.wrong is not None:
            raise self.wrong
        self.changes.append(addresses(settings))

    async def look(self, after=1.0):
        self.clock.now += after
        await self.discovery.look_again(self.change, self.said.append)


def addresses(settings):
    return [[endpoint.address for endpoint in model.endpoints] for model in settings.models]


def listed(file, *entries):
    file.write_text(yaml.safe_dump(list(entries)))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "engines.yaml"


@pytest.fixture
async def names():
    server = NameServer()
    async with server.serving() as server.address:
        yield server


async def test_what_a_file_lists_stands_beside_what_is_configured_and_follows_it(file):
    listed(file, "http://a:1", {"url": "http://b:1/v1", "max_num_seqs": 7})
    watched = Watched({"endpoints": [{"url": "http://s:1"}], "discover": [{"file": str(file), "api_key": "k"}]})
    await watched.discovery.begin()
    settings = watched.discovery.settings
    assert addresses(settings) == [["s:1", "a:1", "b:1"]]
    assert [endpoint.api_key and endpoint.api_key.get_secret_value() for endpoint in settings.models[0].endpoints] == [
        *(None, "k", "k"),
    ]
    assert settings.models[0].endpoints[2].max_num_seqs == 7
    await watched.look()
    assert watched.changes == [], "nothing came or went"

    listed(file, "http://b:1", "http://c:1")
    await watched.look()
    assert watched.changes == [[["s:1", "b:1", "c:1"]]]
    assert watched.said == ["endpoints change: +c:1, -a:1"]
    assert addresses(watched.discovery.settings) == watched.changes[-1]
    await watched.look()
    assert len(watched.changes) == 1


async def test_a_file_that_takes_the_place_of_another_is_read(file, tmp_path):
    listed(file, "http://a:1")
    watched = Watched({"discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    stat, other = file.stat(), tmp_path / "other"
    other.write_text(json.dumps(["http://b:1"]).replace('"', "'").ljust(stat.st_size)[: stat.st_size + 10])
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(file)
    await watched.look()
    assert watched.changes == [[["b:1"]]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "expected a list of endpoints, as [http://127.0.0.1:8000]"),
        ("[]", "the list is empty"),
        ("- url: [", "not valid YAML in line"),
        ("- ftp//x", "endpoints[0].url = 'ftp//x' ({file}): expected a URL with its scheme"),
        ("- http://a:1\n- url: http://b:1\n  max_seqs: 1", "endpoints[1].max_seqs ({file}): unknown key"),
        (yaml.safe_dump([f"http://h{n}:1" for n in range(257)]), "257 endpoints, and 256 are the most"),
        ("- http://" + "x" * 2**20, "over 1 MiB"),
    ],
)
async def test_a_file_that_names_nobody_changes_nothing_and_is_complained_of_each_minute(file, text, reason):
    listed(file, "http://a:1")
    watched = Watched({"discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    file.unlink() if text is None else file.write_text(text)
    await watched.look()
    assert watched.changes == []
    (said,) = watched.said
    assert said.startswith(f"{file} names no endpoints, and those known (1) stay: ")
    assert reason.format(file=file) in said
    for _ in range(58):
        await watched.look()
    assert len(watched.said) == 1
    for _ in range(2):
        await watched.look()
    assert watched.said == [said] * 2

    listed(file, "http://b:1")
    await watched.look()
    assert watched.changes == [[["b:1"]]]
    file.unlink()
    await watched.look()
    assert len(watched.said) == 4, "a new fault is said at once"


async def test_a_name_is_asked_again_when_its_ttl_or_the_interval_is_over(names):
    names.records[NAME], names.ttl = ["10.0.0.1"], 3
    watched = Watched({"discover": [{"dns": "http://vllm.test:8000", "nameserver": names.address, "interval": 5}]})
    await watched.discovery.begin()
    assert (addresses(watched.discovery.settings), names.asked) == ([["10.0.0.1:8000"]], 1)
    names.records[NAME], names.ttl = ["10.0.0.1", "10.0.0.2"], 60
    await watched.look(2.9)
    assert names.asked == 1
    await watched.look(0.1)
    assert watched.changes == [[["10.0.0.1:8000", "10.0.0.2:8000"]]]
    names.ttl = 0
    await watched.look(4.9)
    assert names.asked == 2
    await watched.look(0.1)
    await watched.look(0.9)
    assert names.asked == 3, "never more than once a second, whatever the TTL"
    await watched.look(0.1)
    assert names.asked == 4


async def test_a_name_without_an_answer_keeps_who_is_known(names):
    names.records[NAME] = ["10.0.0.1"]
    watched = Watched({"discover": [{"dns": "http://vllm.test:8000", "nameserver": names.address}]})
    await watched.discovery.begin()
    names.records[NAME] = []
    await watched.look()
    assert watched.changes == []
    assert watched.said == ["http://vllm.test:8000 names no endpoints, and those known (1) stay: there is no such name"]


async def test_a_source_that_names_what_is_no_address_keeps_nobody_from_the_others(names, file):
    names.records["_vllm._tcp.test.", "SRV"] = ["0 0 8000 300.300.300.300."]
    listed(file, "http://10.0.0.9:8000")
    service = {"srv": "http://_vllm._tcp.test", "nameserver": names.address}
    watched = Watched({"discover": [service, {"file": str(file)}]})
    await watched.discovery.begin()
    assert addresses(watched.discovery.settings) == [["10.0.0.9:8000"]]
    names.records["_vllm._tcp.test.", "SRV"] = ["0 0 8000 10.0.0.1."]
    await watched.look(60.0)
    assert watched.changes == [[["10.0.0.1:8000", "10.0.0.9:8000"]]]


async def test_what_is_found_nowhere_at_the_start_is_found_later(file):
    watched = Watched({"discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    assert watched.discovery.settings.awaits_endpoints
    await watched.look()
    assert "those known (0) stay" in watched.said[0]
    listed(file, "http://a:1")
    await watched.look()
    assert watched.changes == [[["a:1"]]]
    assert not watched.discovery.settings.awaits_endpoints


async def test_an_address_found_twice_is_one_endpoint(file):
    listed(file, "http://s:1", "http://a:1", "http://a:1/base")
    model = {"discover": [{"file": str(file)}]}
    watched = Watched({"endpoints": [{"url": "http://s:1"}], **model}, {"name": "other", **model})
    await watched.discovery.begin()
    assert addresses(watched.discovery.settings) == [["s:1", "a:1"], []]
    Settings.model_validate(watched.discovery.settings.model_dump())


async def test_an_address_is_whose_source_names_it_now(names, file):
    """Of a model whose engines are gone, another one's engine may have an address."""
    names.records[NAME] = ["10.0.0.1", "10.0.0.2"]
    listed(file, "http://10.0.0.3:8000")
    gone = {"name": "gone", "discover": [{"dns": "http://vllm.test:8000", "nameserver": names.address}]}
    watched = Watched(gone, {"name": "there", "discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    names.records[NAME] = []
    listed(file, "http://10.0.0.1:8000")
    await watched.look(60.0)
    assert watched.changes == [[["10.0.0.2:8000"], ["10.0.0.1:8000"]]]
    names.records[NAME] = ["10.0.0.1"]
    await watched.look(60.0)
    assert watched.changes[1:] == [[["10.0.0.1:8000"], []]], "the first counts"


async def test_a_change_that_fails_is_tried_again_and_complained_of_once_a_minute(file):
    listed(file, "http://a:1")
    watched = Watched({"discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    listed(file, "http://b:1")
    watched.wrong = ConfigurationError("no such key file")
    for _ in range(5):
        await watched.look()
    assert len(watched.said) == 1
    assert "no such key file" in watched.said[0]
    watched.wrong = None
    await watched.look()
    assert watched.changes == [[["b:1"]]]


async def test_other_settings_are_gone_by_once_they_are_in_force(file, tmp_path):
    listed(file, "http://a:1")
    listed(tmp_path / "new", "http://n:1")
    watched = Watched({"discover": [{"file": str(file)}]})
    await watched.discovery.begin()
    other = Settings.model_validate({"models": [{"discover": [{"file": str(tmp_path / "new")}]}]})
    completed = await watched.discovery.complete(other)
    assert addresses(completed) == [["n:1"]], "looked at before anything changes"
    listed(file, "http://b:1")
    await watched.look()
    assert watched.changes == [[["b:1"]]], "not in force yet"
    watched.discovery.follow(other, completed)
    listed(file, "http://c:1")
    await watched.look()
    assert len(watched.changes) == 1


async def test_it_looks_by_itself_and_waits_for_its_turn(file, monkeypatch):
    monkeypatch.setattr(discovery, "_LOOK", 0.01)
    listed(file, "http://a:1")
    watched = Watched({"discover": [{"file": str(file)}]})
    watched.discovery = Discovery(watched.discovery.settings)
    changed = asyncio.Event()

    async def change(_):
        changed.set()

    await watched.discovery.begin()
    running = asyncio.create_task(watched.discovery.run(change, watched.said.append))
    async with watched.discovery.turn:
        listed(file, "http://b:1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await changed.wait()
    async with asyncio.timeout(60):
        await changed.wait()
    running.cancel()
