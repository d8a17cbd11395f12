"""`kvgate top` on a kvgate that serves."""

import io
import json

from rich.console import Console

from gateway.commands.top.figures import ENDPOINTS, FLOWS, GAP, REQUESTS, fitting
from gateway.commands.top.following import Kvgate
from gateway.commands.top.once import show
from gateway.commands.top.screen import Top
from tests.fakes.vllm import FakeVllm
from tests.integration.frozen import frozen
from tests.integration.relaying import body, gateway
from tests.unit.commands.top.following_fake import text
from tests.until import until

WIDTH = 160


def table(columns, lines, size=WIDTH):
    """The rows of a printed table, by the titles of its columns."""
    shown = fitting(columns, size)
    begin = next(number for number, line in enumerate(lines) if line.startswith(tuple(_heads(shown))))
    rows = []
    for line in lines[begin + 1 :]:
        if not line.strip() or line.startswith(("█", "kvgate")):
            break
        at, row = 0, {}
        for column, width in shown:
            row[column.title] = line[at : at + width].strip()
            at += width + GAP
        rows.append(row)
    return rows


def _heads(shown):
    (first, width), (second, _) = shown[:2]
    head = first.title.rjust(width) if first.right else first.title.ljust(width)
    yield f"{head}{' ' * GAP}{second.title}"


async def test_once_the_state_the_events_and_the_view_show_the_same_figures():
    async with frozen() as kvgate, Kvgate(f"http://127.0.0.1:{kvgate.port}") as followed:
        (endpoint,), (queue,) = [(await kvgate.state())[name] for name in ("endpoints", "queues")]
        picture = await followed.picture()
        out = io.StringIO()
        show(picture, Console(file=out, width=WIDTH, highlight=False, markup=False))
        lines = out.getvalue().splitlines()
        app = Top(Kvgate(f"http://127.0.0.1:{kvgate.port}"))
        async with app.run_test(size=(WIDTH + GAP, 40)):
            await until(lambda: all(part in text(app) for part in ("gate shut", "to wait", "waiting ")))
            viewed = text(app).splitlines()

    (told,) = picture.endpoints
    assert (told.id, told.state, told.in_flight) == (endpoint["id"], endpoint["state"], endpoint["in_flight"])
    assert (told.usage, told.forecast) == (round(endpoint["kv"]["effective"], 4), round(endpoint["kv"]["forecast"], 4))
    assert (told.sequences, picture.models[0].waiting) == (endpoint["sequences"], queue["depth"]) == (4, 3)
    assert told.preemptions == endpoint["engine"]["preemptions"]

    (printed,) = table(ENDPOINTS, lines)
    assert printed["endpoint"] == endpoint["id"]
    assert printed["used"] == f"{endpoint['kv']['effective'] * 100:.0f} %"
    assert printed["peak"] == f"{endpoint['kv']['forecast'] * 100:.0f} %"
    assert printed["running"] == f"{endpoint['sequences']}/{endpoint['max_num_seqs']}"
    assert printed["preempted"] == str(endpoint["engine"]["preemptions"])
    (flow,) = table(FLOWS, lines)
    assert (flow["flow"], flow["waiting"]) == ("127.0.0.1", str(queue["depth"]))
    requests = table(REQUESTS, lines)
    assert [row["request"] for row in requests].count("running") == endpoint["in_flight"]
    assert [row["request"] for row in requests].count("waiting") == queue["depth"]
    held = sum(int(row["blocks"]) for row in requests if row["request"] == "running")
    assert held == round(endpoint["kv"]["ledger"] * endpoint["kv"]["blocks"])

    assert table(ENDPOINTS, viewed)[0] | {"15 min": ""} == printed | {"15 min": ""}
    moving = {"oldest", "to wait", "waited", "end", "first", "out"}
    for columns in (FLOWS, REQUESTS):
        still = [column.title for column in columns if column.title not in moving]
        seen, once = ([[row[title] for title in still] for row in table(columns, of)] for of in (viewed, lines))
        assert seen[: len(once)] == once
    for row, later in zip(requests, table(REQUESTS, viewed), strict=False):  # the decode clock goes on
        (before, limit), (after, same) = (each["out"].rpartition("/")[::2] for each in (row, later))
        assert (int(before or 0) <= int(after or 0), limit) == (True, same)


async def test_drain_and_explain_reach_a_kvgate_with_a_key():
    async with FakeVllm() as fake, gateway(fake, auth={"admin_key": "sesame"}, ready=False) as kvgate:
        kvgate.client.headers["authorization"] = "Bearer sesame"
        await until(lambda: _healthy(kvgate))
        app = Top(Kvgate(f"http://127.0.0.1:{kvgate.port}", "sesame"))
        async with app.run_test() as pilot:
            await until(lambda: f"127.0.0.1:{fake.port}" in text(app))
            await pilot.press("e")
            app.screen.query_one("Request").text = json.dumps(body())
            await pilot.press("enter")
            await until(lambda: "It would be sent to" in text(app))
            await pilot.press("escape", "d", "y")
            await until(lambda: "draining" in text(app))
            assert (await kvgate.state())["endpoints"][0]["state"] == "draining"
            await pilot.press("d", "y")
            await until(lambda: _healthy(kvgate))


async def test_it_says_when_a_kvgate_is_gone_and_follows_the_next_on_its_socket(tmp_path):
    socket = f"unix:{tmp_path}/k.sock"
    listening = {"server": {"host": socket}, "ready": False}
    async with FakeVllm() as fake:
        app = Top(Kvgate(socket))
        async with app.run_test():
            await until(lambda: "No connection" in text(app))
            for _ in range(2):
                async with gateway(fake, **listening):
                    await until(lambda: "Serving." in text(app))
                await until(lambda: "No connection" in text(app))


async def _healthy(kvgate):
    return all(endpoint["healthy"] for endpoint in (await kvgate.state())["endpoints"])
