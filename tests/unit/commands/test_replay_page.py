import httpx
import pytest

from gateway.commands.replay_page import replay_app
from gateway.record.series import pictured
from tests.unit.record.incident import Incident


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    file = Incident().play().write(tmp_path_factory.mktemp("log") / "events.jsonl")
    return replay_app(pictured(file, {"queue": {"max_requests": 5}}, ["admission.queue.max_requests=5"]))


@pytest.fixture
async def asked(app):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8089/kvgate/"
    ) as client:
        yield client


async def test_the_page_is_the_live_one_and_knows_that_it_shows_a_record(asked):
    page = await asked.get("")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (await asked.get("page/words.json")).json()["replay"] is True
    assert (await asked.get("page/replay.js")).status_code == 200
    assert (await asked.get("page/replay.css")).status_code == 200


async def test_it_gets_the_series_and_each_picture(asked):
    answer = await asked.get("replay")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    series = answer.json()
    assert series["file"] == "events.jsonl"
    assert [len(side["glances"]) for side in series["sides"]] == [31, 31]
    assert [side["settings"] for side in series["sides"]] == [[], ["admission.queue.max_requests=5"]]
    pictures = [(await asked.get(f"replay/{side}/8")).json() for side in (0, 1)]
    assert [picture["at"] for picture in pictures] == [8, 8]
    assert [picture["models"][0].get("waiting", 0) for picture in pictures] == [0, 1]


@pytest.mark.parametrize("path", ["replay/0/31", "replay/2/0", "replay/0/-1", "events", "state"])
async def test_nothing_else_is_there(asked, path):
    assert (await asked.get(path)).status_code == 404


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"x-forwarded-for": "10.0.0.9"}]
)
async def test_it_is_shown_on_this_machine_alone(asked, headers):
    for path in ("", "replay", "replay/0/0"):
        answer = await asked.get(path, headers=headers)
        assert answer.status_code == 403
        assert "events.jsonl" not in answer.text
