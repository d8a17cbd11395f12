"""A gateway records what its cores are told, and another process decides the same."""

import asyncio
import json
import signal
import subprocess
import sys

import httpx
import pytest

from tests.fakes.vllm import FakeSettings, FakeVllm, Fault, FaultKind
from tests.integration.relaying import APIS, CHAT, gateway, until

SECRET = "sesame opens"


def command(file, *options):
    return [sys.executable, "-m", "gateway", "replay", str(file), *options]


def replay(file, *options):
    argv = command(file, *options)
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
async def record(tmp_path):
    """The record of requests that ran, waited, were refused, failed and left, over two endpoints."""
    file = tmp_path / "events.jsonl"
    async with FakeVllm(FakeSettings(step_seconds=0.005)) as one, FakeVllm(FakeSettings(step_seconds=0.005)) as two:
        endpoints = [{"url": fake.url, "max_num_seqs": 2} for fake in (one, two)]
        models = [{"endpoints": endpoints, "tokenizer": "/nonexistent"}]
        admission = {"event_log": file, "ttft_target": None, "queue": {"max_requests": 3, "ttl": 1}}
        async with gateway(one, two, models=models, admission=admission) as kvgate:
            one.faults.add(Fault(FaultKind.CLOSE_BEFORE_ANSWER, path=CHAT))
            two.faults.add(Fault(FaultKind.STATUS, path=CHAT))
            messages = [{"role": "user", "content": SECRET}]
            asked = [
                asyncio.create_task(kvgate.post(APIS[number % 4], tokens=20 + number, stream=number % 2 == 0))
                for number in range(9)
            ]
            asked.append(asyncio.create_task(kvgate.post(messages=messages)))
            await until(lambda: one.scheduler.running and two.scheduler.running)
            asked[0].cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            await kvgate.until_idle()
            outcomes = await kvgate.outcomes()
    assert outcomes["queue_full"] > 0
    assert outcomes["completed"] > 0
    return file


async def test_another_process_decides_the_same(record):
    done = replay(record)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout
    assert "events of fake" in done.stdout
    assert SECRET not in record.read_text()


async def test_a_record_that_was_changed_is_found_out(record):
    record.write_text(record.read_text().replace('"outcome":"queue_full"', '"outcome":"queue_timeout"'))
    done = replay(record)
    assert done.returncode == 1
    assert "queue_full" in done.stdout


async def test_other_settings_show_what_they_would_have_done(record):
    done = replay(record, "--set", "admission.queue.max_requests=100", "--set", "admission.kv_high=0.95")
    assert done.returncode == 0, done.stderr
    (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("queue_full")]
    assert int(line[1]) > int(line[2]) == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("admission.kv_hihg=1", "did you mean `kv_high`"),
        ("admission.kv_high=2", "less than or equal to 1"),
        ("log.level=debug", "expected admission.SETTING=VALUE"),
        ("admission.kv_high", "expected admission.SETTING=VALUE"),
        ("admission.kv_high={", "cannot be read"),
    ],
)
def test_a_change_that_is_none_is_a_usage_error(tmp_path, option, said):
    from gateway.record.lines import Started, encode

    file = tmp_path / "f"
    file.write_bytes(encode(Started("0", {}, {}, 1.0)))
    done = replay(file, "--set", option)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_file_that_is_no_record_is_a_usage_error(tmp_path):
    file = tmp_path / "f"
    file.write_text(json.dumps({"hello": 1}))
    done = replay(file)
    assert done.returncode == 2
    assert "this is no event log" in done.stderr


async def test_a_folder_that_is_not_there_stops_kvgate_at_start(tmp_path):
    from gateway.app.application import Application
    from gateway.config.errors import ConfigurationError
    from gateway.config.settings import Settings

    with pytest.raises(ConfigurationError, match=r"admission\.event_log = .*No such file"):
        Application(Settings.model_validate({"admission": {"event_log": tmp_path / "none" / "f"}}))


async def test_what_one_gateway_learned_the_next_one_begins_with_and_records(tmp_path):
    file, state = tmp_path / "events.jsonl", tmp_path / "state"
    async with FakeVllm(FakeSettings(step_seconds=0.001)) as fake:
        models = [{"endpoints": [{"url": fake.url}], "tokenizer": "/nonexistent"}]
        for _ in range(2):
            async with gateway(
                fake, models=models, admission={"event_log": file}, server={"state_dir": state}
            ) as kvgate:
                await asyncio.gather(*(kvgate.post(APIS[0], tokens=3 + number) for number in range(5)))
                await kvgate.until_idle()
    (kept,) = state.rglob("*.json")
    told = [line for line in map(json.loads, file.read_text().splitlines()) if line.get("event") == "Learned"]
    assert len(told) == 1, "the second one only"
    assert len(told[0]["data"]["everything"]) == 5
    assert len(json.loads(kept.read_bytes())["everything"]) == 10
    done = replay(file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout


def started(argv):
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


async def test_it_is_shown_on_a_page_until_it_is_interrupted(record):
    argv = command(record, "--page", "--port", "0", "--set", "admission.queue.max_requests=100")
    with started(argv) as shown:
        try:
            url = next(word for line in shown.stdout for word in line.split() if word.startswith("http://"))
            async with httpx.AsyncClient(base_url=url) as page:
                assert (await page.get("")).status_code == 200
                series = (await page.get("replay")).json()
                recorded, other = [
                    (await page.get(f"replay/{side}/{len(series['sides'][side]['glances']) - 1}")).json()
                    for side in (0, 1)
                ]
        finally:
            shown.send_signal(signal.SIGINT)
    assert shown.returncode == 128 + signal.SIGINT
    assert recorded["models"][0]["outcomes"]["queue_full"] > 0
    assert "queue_full" not in other["models"][0]["outcomes"]
    assert SECRET not in json.dumps([series, recorded, other])
