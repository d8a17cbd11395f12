import asyncio
import errno
import gc
import os
import signal
import socket
import sys

import pytest

from engine.process import GuardedProcess, LaunchError, free_port
from tests.unit.engine.processes import eventually, is_alive
from tests.until import PATIENCE, until


def python(code: str, *args: str) -> list[str]:
    return [sys.executable, "-S", "-c", code, *args]


async def run(code: str, *, env: dict[str, str] | None = None, stdin: bytes | None = None) -> tuple[int, list[str]]:
    lines: list[str] = []
    process = await GuardedProcess.launch(python(code), env=env or {}, stdin=stdin, on_line=lines.append)
    return await process.wait(), lines


async def test_lines_of_both_streams_come_one_by_one() -> None:
    code = "import sys; print('one\\n\\ntwo', flush=True); sys.stderr.write('10%\\r20%\\rthree'); sys.exit(3)"
    assert await run(code) == (3, ["one", "two", "10%", "20%", "three"])


@pytest.mark.parametrize("at_once", [1_000_000, 5_000])
async def test_of_a_long_line_the_beginning_is_told_and_nothing_else(at_once: int) -> None:
    """What follows has no level, and would be read as an error: it may be a prompt in the log of a request."""
    code = f"import os; [os.write(1, b'x' * {at_once}) for _ in range(1_000_000 // {at_once})]; print('\\nnext')"
    assert await run(code) == (0, ["x" * 65_536, "next"])


async def test_a_line_of_64_kib_is_told_whole() -> None:
    _, lines = await run("print('x' * 65_535 + 'y')")
    assert lines == ["x" * 65_535 + "y"]


async def test_the_standard_input_is_given_whole_and_ended() -> None:
    code = "import sys; print(len(sys.stdin.read()))"
    assert await run(code, stdin=b"x" * 300_000) == (0, ["300000"])
    assert await run(code) == (0, ["0"])


async def test_the_environment_is_exactly_the_one_given() -> None:
    code = "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"
    assert await run(code, env={"ONLY": "this"}) == (0, ["['ONLY']"])


async def test_a_signal_is_a_negative_code() -> None:
    process = await GuardedProcess.launch(["sleep", "600"], env=dict(os.environ))
    process.send(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM


async def test_a_guard_that_is_killed_counts_as_the_programs_kill() -> None:
    process = await GuardedProcess.launch(["sleep", "600"], env=dict(os.environ))
    os.kill(process.group, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert eventually(lambda: not is_alive(process.pid))


async def test_killing_ends_the_whole_group() -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    code = "import subprocess; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"
    process = await GuardedProcess.launch(python(code), env=dict(os.environ), on_line=said.put_nowait)
    child = int(await said.get())
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    assert eventually(lambda: not is_alive(process.pid))
    assert eventually(lambda: not is_alive(child))


OUTSIDE = (
    "import subprocess, sys; "
    "print(subprocess.Popen(['sleep', '200'], start_new_session=True).pid, flush=True); sys.exit(3)"
)
"""A program that leaves one outside its group, which holds its output."""


async def test_one_outside_the_group_that_holds_its_output_does_not_hide_its_end() -> None:
    async with asyncio.timeout(PATIENCE):
        ended, (daemon,) = await run(OUTSIDE, env=dict(os.environ))
    os.kill(int(daemon), signal.SIGKILL)
    assert ended == 3


async def test_a_group_that_dies_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process does that has much of a GPU's memory: the next engine would find it taken."""
    looks = iter((True, True, True, False))

    def killpg(group: int, number: int) -> None:
        if number:
            os.kill(-group, number)
        elif not next(looks):
            raise ProcessLookupError

    monkeypatch.setattr("engine.process._OUTPUT_GRACE", 0.01)
    monkeypatch.setattr("engine.process.os.killpg", killpg)
    _, (daemon,) = await run(OUTSIDE, env=dict(os.environ))
    os.kill(int(daemon), signal.SIGKILL)
    assert next(looks, None) is None


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(LaunchError, match="/no/such: No such file"):
        await GuardedProcess.launch(["/no/such"], env={})


async def test_a_machine_without_room_for_a_process_is_a_failed_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    opened: list[socket.socket] = []
    real = socket.socketpair

    def socketpair() -> tuple[socket.socket, socket.socket]:
        opened.extend(pair := real())
        return pair

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    monkeypatch.setattr("engine.process.socket.socketpair", socketpair)
    with pytest.raises(LaunchError, match="vllm: Resource temporarily unavailable"):
        await GuardedProcess.launch(["vllm"], env={}, on_news=print)
    assert [one.fileno() for one in opened] == [-1] * 4


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


async def test_descriptors_are_handed_on_under_their_numbers_and_closed_when_it_ends() -> None:
    ours, theirs = socket.socketpair()
    code = "import os, sys; os.write(int(sys.argv[1]), b'here'); print(sorted(os.listdir('/proc/self/fd'), key=int))"
    lines: list[str] = []
    with ours, theirs:
        number = theirs.fileno()
        process = await GuardedProcess.launch(
            python(code, str(number)), env={}, on_line=lines.append, fds=(number,), on_news=lines.append
        )
        theirs.close()
        assert ours.recv(4) == b"here"
        assert ours.recv(4) == b"", "the guard holds it open"
        assert await process.wait() == 0
    assert len(eval(lines[0])) == 6  # noqa: S307  # its own three, the handed one, the news, and the listing itself


async def test_what_it_has_to_tell_arrives_line_by_line() -> None:
    told: list[str] = []
    code = "import os; os.write(int(os.environ['KVGATE_NEWS_FD']), b'ready\\nhung x\\n')"
    process = await GuardedProcess.launch(python(code), env={}, on_news=told.append)
    assert await process.wait() == 0
    assert told == ["ready", "hung x"]


async def test_what_it_is_told_arrives_line_by_line() -> None:
    heard: list[str] = []
    code = "import os, socket; s = socket.socket(fileno=int(os.environ['KVGATE_NEWS_FD'])); f = s.makefile('rw');"
    echo = "f.write('go\\n'); f.flush(); f.write(f.readline().upper()); f.flush()"
    process = await GuardedProcess.launch(python(code + echo), env={}, on_news=heard.append)
    assert process.tell(b"two words")
    assert await process.wait() == 0
    assert heard == ["go", "TWO WORDS"]


async def test_a_program_that_ends_without_reading_what_it_was_told_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []
    code = "import os, time; os.write(int(os.environ['KVGATE_NEWS_FD']), b'ready\\n'); time.sleep(60)"
    process = await GuardedProcess.launch(python(code), env={}, on_news=heard.append)
    await until(lambda: heard)
    assert process.tell(b"x")
    process.kill()
    await process.wait()
    del process
    gc.collect()  # what nobody asked after is logged then
    assert caplog.text == ""


async def test_a_program_that_was_promised_nothing_is_told_nothing() -> None:
    process = await GuardedProcess.launch(python("pass"), env={})
    assert not process.tell(b"x")
    await process.wait()
