import errno
import stat

import pytest

from gateway.admission.events import Tick
from gateway.record import recorder as module
from gateway.record.lines import Dropped, Happened, Opened, Started, read
from gateway.record.recorder import Recorder
from tests.until import until

START = Started("0.1", {}, {}, 1.0)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "events.jsonl"


async def test_pools_are_told_apart_and_all_is_there_in_the_end(file):
    recorder = Recorder(file, START)
    recorder.start()
    one, two = recorder.pool("a"), recorder.pool("b")
    one(Tick(), 1.0, [])
    two(Tick(), 2.0, [])
    await recorder.close()
    one(Tick(), 3.0, [])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # it names tenants
    start, *lines = read(file)
    assert start == START
    assert lines[:2] == [Opened(1, "a"), Opened(2, "b")]
    assert [(line.pool, line.at) for line in lines[2:]] == [(1, 1.0), (2, 2.0)]


async def test_it_is_written_while_it_happens(file, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 0.01)
    recorder = Recorder(file, START)
    recorder.start()
    recorder.pool("a")(Tick(), 1.0, [])
    await until(lambda: b'"Tick"' in file.read_bytes())
    await recorder.close()


async def test_a_run_is_appended_to_what_is_there_even_where_that_is_torn(file):
    for torn in (b"", b'{"line":"ev'):
        with file.open("ab") as before:
            before.write(torn)
        recorder = Recorder(file, START)
        recorder.start()
        await recorder.close()
    assert list(read(file)) == [START, START]


async def test_a_run_waits_for_the_end_of_the_one_that_writes_to_the_file(file, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 0.01)
    old, new = Recorder(file, START), Recorder(file, START)
    old.start()
    of_old, of_new = old.pool("old"), new.pool("new")
    await until(lambda: b'"old"' in file.read_bytes())
    new.start()
    of_new(Tick(), 2.0, [])
    of_old(Tick(), 1.0, [])
    await until(lambda: b'"at":1.0' in file.read_bytes())
    assert b'"new"' not in file.read_bytes()
    await old.close()
    await until(lambda: b'"at":2.0' in file.read_bytes())
    await new.close()
    assert [getattr(line, "model", "-") for line in read(file)] == ["-", "old", "-", "-", "new", "-"]


async def test_a_disk_that_is_too_slow_loses_lines_and_says_how_many(file, monkeypatch):
    monkeypatch.setattr(module, "FLUSH_INTERVAL", 0.01)
    monkeypatch.setattr(module, "MAX_PENDING", 400)
    recorder = Recorder(file, START)
    record = recorder.pool("a")
    for number in range(100):
        record(Tick(), float(number), [])
    recorder.start()
    await until(lambda: not recorder._pending)
    record(Tick(), 100.0, [])
    await recorder.close()
    lines = list(read(file))
    kept = [line for line in lines if isinstance(line, Happened)]
    (lost,) = [line for line in lines if isinstance(line, Dropped)]
    assert lost.lines + len(kept) == 101
    assert lines.index(lost) == len(lines) - 2, "where they are missing"
    assert [line.at for line in kept[:-1]] == [float(number) for number in range(len(kept) - 1)]


async def test_lines_lost_last_are_counted_too(file, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING", 10)
    recorder = Recorder(file, START)
    recorder.pool("a")
    recorder.start()
    await recorder.close()
    assert list(read(file)) == [START, Dropped(1)]


async def test_a_disk_that_is_full_ends_the_recording_and_nothing_else(file, capsys):
    recorder = Recorder(file, START)

    def full(lines):
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder._write = full
    recorder.start()
    record = recorder.pool("a")
    record(Tick(), 1.0, [])
    await recorder.close()
    record(Tick(), 2.0, [])
    assert capsys.readouterr().out.count("No space left on device") == 1
