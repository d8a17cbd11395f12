import asyncio
import contextlib
import io
import os
import select
from collections.abc import Iterator
from typing import TextIO

import pytest

from gateway.ops import log_output
from gateway.ops.log_output import MOST_HELD, LogOutput
from tests.until import until


class Pipe:
    """A pipe whose reader reads when it is told to."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream: TextIO = os.fdopen(writing, "w")
        self.output = LogOutput(self.stream, lambda lines: f"{lines} lost")

    def read(self) -> str:
        """What is in it now."""
        read = b""
        while select.select([self.reading], [], [], 0)[0]:
            read += os.read(self.reading, 2**16)
        return read.decode()

    def fill(self) -> str:
        """As much as it takes, and a line more, which waits."""
        line = "x" * 4000 + "\n"
        written = line
        self.output.write(line)
        while not self.output._held:
            self.output.write(line)
            written += line
        return written


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reading)
    assert pipe.output._unwaiting is not None
    os.close(pipe.output._unwaiting)
    with contextlib.suppress(BrokenPipeError):
        pipe.stream.close()


def test_a_line_is_written_at_once(pipe: Pipe) -> None:
    pipe.output.write("one\n")
    pipe.output.write("two\n")
    assert pipe.read() == "one\ntwo\n"


def test_a_reader_that_stands_still_keeps_nobody_waiting_and_gets_all_once_it_reads(pipe: Pipe) -> None:
    written = pipe.fill()
    pipe.output.write("é" * 50_000 + "\n")
    pipe.output.write("last\n")
    read = pipe.read()
    while "last" not in read:
        pipe.output.drain(0)
        read += pipe.read()
    assert read == written + "é" * 50_000 + "\nlast\n"


def test_what_nobody_reads_is_lost_beyond_a_bound_and_that_is_said(pipe: Pipe) -> None:
    pipe.fill()
    for _ in range(MOST_HELD // 1000):
        pipe.output.write("y" * 999 + "\n")
    held = sum(len(piece) for piece in pipe.output._held)
    assert MOST_HELD - 1000 < held <= MOST_HELD
    read = pipe.read()
    while pipe.output._held:
        pipe.output.drain(0)
        read += pipe.read()
    lines = read.splitlines()
    assert lines[-1] == f"{MOST_HELD // 1000 - lines.count('y' * 999)} lost"


async def test_in_an_event_loop_what_waits_is_tried_again_by_itself(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_output, "_AGAIN", 0.001)
    pipe.fill()
    pipe.read()
    await until(lambda: not pipe.output._held)
    assert pipe.output._again is None
    await asyncio.sleep(0)
    assert pipe.read() == "x" * 4000 + "\n"


def test_a_reader_that_has_ended_stops_nothing(pipe: Pipe) -> None:
    reading, pipe.reading = pipe.reading, os.open(os.devnull, os.O_RDONLY)
    pipe.fill()
    os.close(reading)
    pipe.output.write("nobody reads this\n")
    assert not pipe.output._held


def test_what_another_process_filled_keeps_nobody_waiting(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the moment after it had room."""
    pipe.fill()
    monkeypatch.setattr(LogOutput, "_takes", lambda _self, _seconds: True)
    held = len(pipe.output._held)
    pipe.output.write("a line\n")
    assert len(pipe.output._held) == held + 1


def test_the_last_lines_have_so_many_seconds_in_all(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], []

    def takes(_self: LogOutput, seconds: float) -> bool:
        waited.append(seconds)
        now[0] += 0.2
        return seconds > 0

    for _ in range(5):
        pipe.fill()
    monkeypatch.setattr("gateway.ops.log_output.time.monotonic", lambda: now[0])
    monkeypatch.setattr(LogOutput, "_takes", takes)
    pipe.read()
    pipe.output.drain(0.5)
    assert len(waited) == 4
    assert waited[0] == 0.5
    assert waited[-1] == 0.0


def test_a_line_over_the_bound_is_written_where_none_waits(pipe: Pipe) -> None:
    pipe.output.write("v" * (MOST_HELD + 1) + "\n")
    assert pipe.output._held
    assert not pipe.output._lost


def test_a_terminal_that_nobody_reads_keeps_nobody_waiting() -> None:
    reading, writing = os.openpty()
    with os.fdopen(writing, "w") as stream:
        output = LogOutput(stream, str)
        for number in range(1000):
            output.write(f"{number} " + "w" * 300 + "\n")
        assert output._held
        read = b""
        while output._held or select.select([reading], [], [], 0.1)[0]:
            read += os.read(reading, 2**16)
            output.drain(0)
        assert output._unwaiting is not None
        os.close(output._unwaiting)
    os.close(reading)
    assert [int(line.split()[0]) for line in read.decode().splitlines()] == [*range(1000)]


def test_a_stream_that_is_no_file_takes_everything() -> None:
    out = io.StringIO()
    LogOutput(out, str).write("z" * 10_000 + "\n")
    assert len(out.getvalue()) == 10_001
