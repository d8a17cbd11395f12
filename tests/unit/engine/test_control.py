import asyncio
import socket
import stat

import pytest

from engine.control import ControlError, Reload, ask, control, run_folder


@pytest.fixture(autouse=True)
def own_run_folder(tmp_path, monkeypatch):
    deep = tmp_path / ("a" * 120)  # longer than a socket's address may be
    deep.mkdir()
    monkeypatch.setenv("KVGATE_CACHE", str(deep))


async def asking(request=Reload(), port=None):  # noqa: B008
    lines: list[str] = []
    return await asyncio.to_thread(ask, request, port, lines.append), lines


async def test_progress_is_heard_as_it_comes_and_the_exit_code_last():
    heard = []

    async def act(request, say):
        heard.append(request)
        say("one")
        say("two\nlines")
        return 3

    async with control(8080, act):
        assert await asking(Reload("/a/file")) == (3, ["one", "two\nlines"])
        assert await asking(port=8080) == (3, ["one", "two\nlines"])
    assert heard == [Reload("/a/file"), Reload()]


async def test_socket_and_folder_are_their_users_alone():
    async with control(1, None):
        assert stat.S_IMODE((run_folder() / "1.sock").stat().st_mode) == 0o600
        assert stat.S_IMODE(run_folder().stat().st_mode) == 0o700
    assert not (run_folder() / "1.sock").exists()


async def test_a_socket_that_cannot_be_removed_is_left():
    """As where its disk has become read-only."""
    async with control(1, None):
        socket_file = run_folder() / "1.sock"
        socket_file.unlink()
        socket_file.mkdir()  # so that its removal fails
    assert socket_file.exists()


async def test_nobody_there_is_said():
    with pytest.raises(ControlError, match="no kvgate runs here: "):
        await asking()
    with pytest.raises(ControlError, match="runs here on port 7: "):
        await asking(port=7)


async def test_the_socket_of_one_that_was_killed_is_nobody():
    run_folder().mkdir()
    (run_folder() / "9.sock").touch()
    async with control(8, lambda *_: asyncio.sleep(0, 0)):
        assert await asking() == (0, [])
        async with control(9, lambda *_: asyncio.sleep(0, 9)):
            assert await asking(port=9) == (9, [])
            with pytest.raises(ControlError, match=r"several .*: --port 8, --port 9"):
                await asking()
            assert await asking(port=9) == (9, [])
        assert await asking(port=8) == (0, [])


async def test_one_on_a_unix_socket_is_named_by_it():
    where = "unix:/run/kvgate/kvgate.sock"
    async with control(where, lambda *_: asyncio.sleep(0, 7)), control(8, lambda *_: asyncio.sleep(0, 8)):
        assert await asking(port=where) == (7, [])
        with pytest.raises(ControlError, match=f"--host {where}"):
            await asking()
    with pytest.raises(ControlError, match=f"no kvgate runs here on {where}"):
        await asking(port=where)
    for last in "ab":  # and as long a path as there is
        async with control(f"unix:{'/folder' * 15}/{last}", lambda *_: asyncio.sleep(0, 9)):
            assert await asking(port=f"unix:{'/folder' * 15}/{last}") == (9, [])


async def test_who_leaves_stops_nothing():
    begun, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(_, say):
        begun.set()
        await go.wait()
        say("too late")
        done.set()
        return 0

    async with control(1, act):
        client = await asyncio.to_thread(connected, run_folder() / "1.sock")
        client.sendall(b"{}\n")
        await begun.wait()
        client.close()
        go.set()
        await asyncio.wait_for(done.wait(), 5)


async def test_what_is_no_request_is_refused():
    async with control(1, None):
        client = await asyncio.to_thread(connected, run_folder() / "1.sock")
        client.sendall(b"hello\n")
        assert b'"exit":2' in await asyncio.to_thread(lambda: client.makefile("rb").read())
        client.close()


async def test_a_defect_while_it_acts_is_not_taken_for_a_request_that_is_none(caplog):
    async def act(_, _say):
        raise ValueError("a defect")

    async with control(1, act):
        client = await asyncio.to_thread(connected, run_folder() / "1.sock")
        client.sendall(b"{}\n")
        assert b"understand" not in await asyncio.to_thread(lambda: client.makefile("rb").read())
        client.close()
    assert "a defect" in caplog.text


def connected(path):
    import os

    folder = os.open(path.parent, os.O_PATH)
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    return client
