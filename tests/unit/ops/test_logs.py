import asyncio
import errno
import io
import json
import logging
import re
import select

import pytest
import structlog

from engine.events import LinePrinted
from gateway.config.settings import LogSettings
from gateway.ops import people
from gateway.ops.logs import AccessLog, configure, redact
from gateway.serve.supervision_log import SupervisionLog
from tests.until import PATIENCE

FIELDS = {
    "request_id": "req-1",
    "path": "/v1/chat/completions",
    "model": "smol",
    "flow": "alice",
    "status": 200,
    "outcome": "completed",
    "endpoint": "127.0.0.1:8001",
    "fallback": None,
    "stream": True,
    "prompt_tokens": 12,
    "counted": "estimate",
    "completion_tokens": 34,
    "queue_ms": 0.0,
    "ttft_ms": 31.25,
    "overhead_ms": 0.8,
    "duration_ms": 512.5,
}


@pytest.fixture(autouse=True)
def logging_as_it_was():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Disk(io.StringIO):
    """Is full for a while."""

    full = False

    def write(self, text):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def lines(out):
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_request_is_one_line_of_json_with_every_field():
    out = io.StringIO()
    AccessLog(LogSettings(format="json"), out)(**FIELDS)
    (line,) = lines(out)
    assert {name: line[name] for name in FIELDS} == FIELDS
    assert set(line) - set(FIELDS) == {"timestamp", "level", "event"}
    assert line["event"] == "request"


async def test_lines_written_together_come_whole_in_their_order_and_soon():
    written: list[str] = []

    class Pipe(io.StringIO):
        def write(self, text):
            written.append(text)
            return super().write(text)

    out = Pipe()
    access = AccessLog(LogSettings(format="json"), out, together=True)
    for number in range(50):
        access(**{**FIELDS, "request_id": str(number)})
    access.flush()
    assert [line["request_id"] for line in lines(out)] == [str(number) for number in range(50)]
    assert 1 < len(written) < 25, "together"
    assert all(len(page.encode()) <= select.PIPE_BUF and page.endswith("\n") for page in written)
    access(**FIELDS)
    access(**FIELDS)
    assert len(lines(out)) < 52, "not at once"
    async with asyncio.timeout(PATIENCE):
        while len(lines(out)) < 52:  # noqa: ASYNC110  # the loop's own timer writes them
            await asyncio.sleep(0.01)
    access.flush()
    assert len(lines(out)) == 52


def test_what_is_not_known_is_null_in_json_and_left_out_for_people():
    unknown = {**FIELDS, "endpoint": None, "ttft_ms": None}
    out, shown = io.StringIO(), io.StringIO()
    AccessLog(LogSettings(format="json"), out)(**unknown)
    AccessLog(LogSettings(format="console"), shown)(**unknown)
    assert lines(out)[0]["ttft_ms"] is None
    assert "None" not in shown.getvalue()
    assert "12+34" in shown.getvalue()


def test_a_terminal_gets_a_console_and_a_file_gets_json():
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        AccessLog(LogSettings(format="auto"), out)(**FIELDS)
        configure(LogSettings(format="auto"), out)
        structlog.get_logger().info("hello")
    assert not terminal.getvalue().startswith("{")
    assert [line["event"] for line in lines(file)] == ["request", "hello"]


@pytest.mark.parametrize("format_", ["json", "console"])
def test_names_that_clients_write_cannot_forge_lines_nor_carry_texts(format_):
    out = io.StringIO()
    forged = 'x\n{"event":"request"}\x1b[31m\udc80' + "a long secret prompt " * 100
    written = dict.fromkeys(("request_id", "model", "path", "flow"), forged)
    AccessLog(LogSettings(format=format_), out)(**{**FIELDS, **written})
    assert out.getvalue().removeprefix(f"{people.HEADER}\n").count("\n") == 1
    assert "\x1b" not in out.getvalue()
    assert len(out.getvalue()) < 1500


def test_texts_and_secrets_do_not_get_into_any_line():
    out = io.StringIO()
    configure(LogSettings(level="debug", format="json"), out)
    prompt, key = "the quick brown fox", "sk-0123456789"
    log = structlog.get_logger()
    for name in ("prompt", "messages", "text", "content", "body", "completion", "input", "tools"):
        log.warning("event", **{name: [{"role": "user", "content": prompt}]})
    for name in ("api_key", "admin_key", "authorization", "headers", "key", "token"):
        log.warning("event", **{name: key})
    log.warning("upstream said Authorization: Bearer %s, and closed", key)
    log.warning("cannot connect", url=f"http://user:{key}@host:8000/")
    logging.getLogger("aiohttp.client").warning("sent {'Authorization': 'bearer %s'}", key)
    assert prompt not in out.getvalue()
    assert key not in out.getvalue()
    assert len(lines(out)) == 17


def test_a_traceback_shows_no_values_of_variables():
    out = io.StringIO()
    configure(LogSettings(format="json"), out)

    def fail(body):
        raise RuntimeError("it broke")

    try:
        fail(b"the quick " + b"brown fox")
    except RuntimeError:
        structlog.get_logger().exception("request failed")
        logging.getLogger("asyncio").exception("task failed")
    ours, theirs = lines(out)
    assert "it broke" in ours["exception"]
    assert "it broke" in theirs["exception"]
    assert "quick brown" not in out.getvalue()


def test_lines_of_libraries_come_in_the_same_format():
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    logging.getLogger("a.library").info("Started server process [%d]", 7)
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["level"]) == ("Started server process [7]", "a.library", "info")


def test_people_hear_of_libraries_only_what_went_wrong():
    out = Terminal()
    configure(LogSettings(), out)
    logging.getLogger("a.library").info("Started server process")
    logging.getLogger("a.library").warning("It broke.")
    (line,) = out.getvalue().splitlines()
    assert "It broke." in line


def test_every_line_of_json_has_its_time_in_one_form():
    out = io.StringIO()
    configure(LogSettings(), out)
    structlog.get_logger().info("ours")
    logging.getLogger("a.library").info("theirs")
    AccessLog(LogSettings(), out)(**FIELDS)
    SupervisionLog(None, for_people=False)(LinePrinted("engine e", "of an engine"))
    assert len(lines(out)) == 4
    for line in lines(out):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["timestamp"]), line


def test_a_terminal_is_not_sent_what_it_would_obey():
    out = Terminal()
    configure(LogSettings(), out)
    structlog.get_logger().warning("endpoint changed", endpoint="h", state="down", reason="said \x1b[2Jx\nand more")
    assert "\x1b[2J" not in out.getvalue()
    assert out.getvalue().splitlines()[1] == "          and more"


@pytest.mark.parametrize("name", ["uvicorn.access", "httpx", "aiohttp.access"])
def test_nobody_else_writes_a_line_for_each_request(name):
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    logging.getLogger(name).info("GET /v1/models 200")
    assert out.getvalue() == ""


def test_the_level_is_the_least_that_is_shown():
    out = io.StringIO()
    configure(LogSettings(level="warning", format="json"), out)
    structlog.get_logger().info("quiet")
    logging.getLogger("any").info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in lines(out)] == ["loud"]


@pytest.mark.parametrize("odd", ["\udc80", 2**80, float("nan"), object(), b"\xff", {1: 2}])
def test_no_value_is_so_odd_that_logging_it_fails(odd):
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    structlog.get_logger().info("odd", value=odd)
    assert lines(out)[0]["event"] == "odd"


def test_redaction_keeps_what_is_harmless():
    line = {"event": "endpoint changed", "endpoint": "127.0.0.1:8001", "prompt_tokens": 5, "url": "http://h:1/a@b"}
    assert redact(None, "info", dict(line)) == line


def test_lines_that_cannot_be_written_are_lost_and_nothing_else_happens():
    out = Disk()
    configure(LogSettings(format="json"), out)
    access, log = AccessLog(LogSettings(format="json"), out), structlog.get_logger()
    for out.full in (True, False):
        access(**FIELDS)
        log.info("said")
        log.error("said too", exc_info=ValueError())
    assert [line["event"] for line in lines(out)] == ["request", "said", "said too"]
