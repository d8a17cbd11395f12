import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TypeVar

from engine import events
from engine.diagnosis.sign import Diagnosis
from engine.events import SupervisorEvent
from engine.program import Program, Refit, Role
from engine.program_lifecycle import Policy
from engine.supervisor import Supervisor
from tests.ports import free_port
from tests.unit.engine.processes import eventually, is_alive

BOUND = 15.0
Event = TypeVar("Event", bound=SupervisorEvent)
QUICK = Policy(start_timeout=10, stop_timeout=5, max_restarts=2, backoff=0.02, max_backoff=0.05, steady_after=60)

# Answers 200 to anything on port argv[1], and ends on SIGTERM.
SERVER = """
import http.server, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def program(
    name: str, code: str, *args: str, role: Role = Role.ENGINE, policy: Policy = QUICK, url: str | None = None
) -> Program:
    argv = (sys.executable, "-S", "-c", textwrap.dedent(code), *args)
    return Program(name, role, argv, dict(os.environ), ready_url=url, follows_log=True, policy=policy)


def server(name: str, role: Role = Role.ENGINE) -> Program:
    port = free_port()
    return program(name, SERVER, str(port), role=role, url=f"http://127.0.0.1:{port}/")


class Running:
    """A supervisor at work, and all it has told."""

    def __init__(self, *programs: Program, coming: Callable[[Role], bool] = lambda _role: False) -> None:
        self.told: list[SupervisorEvent] = []
        self.news: list[tuple[str, str]] = []
        self.ended_roles: list[tuple[Role, int]] = []
        """And how many programs had ended by then."""
        self.stop = asyncio.Event()
        self._news = asyncio.Event()
        self.supervisor = Supervisor(
            programs,
            self._hear,
            lambda program, line: self.news.append((program.name, line)),
            lambda role: self.ended_roles.append((role, len(self.of(events.Stopped)))),
            coming,
        )
        self.task = asyncio.create_task(self.supervisor.run(self.stop))

    def _hear(self, event: SupervisorEvent) -> None:
        self.told.append(event)
        self._news.set()

    def of(self, kind: type[Event], name: str = "") -> list[Event]:
        return [event for event in self.told if isinstance(event, kind) and name in {"", event.program}]

    async def until(self, kind: type[SupervisorEvent], name: str = "", times: int = 1) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.of(kind, name)) < times:
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> int:
        return await asyncio.wait_for(self.task, BOUND)


@contextlib.asynccontextmanager
async def running(*programs: Program, coming: Callable[[Role], bool] = lambda _role: False) -> AsyncIterator[Running]:
    at_work = Running(*programs, coming=coming)
    try:
        yield at_work
    finally:
        at_work.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await at_work.task


def pid_of(at_work: Running, name: str) -> int:
    """The process id that the program of this name printed last."""
    return int([line for line in at_work.of(events.LinePrinted, name) if line.text.isdigit()][-1].text)


async def test_gateways_stop_before_engines() -> None:
    async with running(server("e0"), server("g", Role.GATEWAY), server("e1")) as at_work:
        await at_work.until(events.BecameReady, times=3)
        at_work.stop.set()
        assert await at_work.ended() == 0
        assert at_work.of(events.Stopped)[0].program == "g"
        order = [(type(e), e.program) for e in at_work.told]
        assert order.index((events.Stopped, "g")) < order.index((events.Stopping, "e0"))
        assert at_work.ended_roles == [(Role.GATEWAY, 1), (Role.ENGINE, 3)]


async def test_a_gateway_that_crashes_finds_its_engines_running() -> None:
    crashing = program("g", "import os, time; print(os.getpid(), flush=True); time.sleep(600)", role=Role.GATEWAY)
    async with running(server("e"), crashing) as at_work:
        await at_work.until(events.BecameReady, times=2)
        await at_work.until(events.LinePrinted, "g")
        os.kill(pid_of(at_work, "g"), signal.SIGKILL)
        await at_work.until(events.BecameReady, "g", times=2)
        assert len(at_work.of(events.Launched, "e")) == 1
        assert "SIGKILL" in at_work.of(events.Crashed, "g")[0].diagnosis.cause
        at_work.stop.set()
        assert await at_work.ended() == 0


async def test_what_keeps_crashing_is_given_up_with_its_reason_and_waits_in_between() -> None:
    code = "import sys; sys.exit('ValueError: it cannot be')"
    async with running(program("e", code)) as at_work:
        assert await at_work.ended() == 1
        assert [type(e) for e in at_work.told if not isinstance(e, events.LinePrinted | events.BecameReady)] == [
            *([events.Launched, events.Crashed, events.Retrying] * 2),
            *(events.Launched, events.Crashed, events.GaveUp),
        ]
        assert at_work.of(events.GaveUp)[0].diagnosis.cause == "It ended with exit code 1: ValueError: it cannot be"
        assert [e.seconds for e in at_work.of(events.Retrying)] == [0.02, 0.04]


async def test_one_engine_given_up_leaves_the_others_serving() -> None:
    bad = program("bad", "import sys; sys.exit('x: error: unrecognized arguments: --x')", url="http://127.0.0.1:1/")
    async with running(server("good"), bad, server("g", Role.GATEWAY)) as at_work:
        await at_work.until(events.GaveUp, "bad")
        await at_work.until(events.BecameReady, times=2)
        assert len(at_work.of(events.Launched, "bad")) == 1
        assert not at_work.task.done()
        at_work.stop.set()
        assert await at_work.ended() == 0


async def test_without_any_engine_left_everything_ends() -> None:
    bad = program("bad", "import sys; sys.exit('x: error: unrecognized arguments: --x')", url="http://127.0.0.1:1/")
    async with running(bad, server("g", Role.GATEWAY)) as at_work:
        assert await at_work.ended() == 1
        assert at_work.of(events.Stopped, "g")


async def test_while_engines_come_and_go_one_that_is_given_up_ends_nothing() -> None:
    bad = program("bad", "import sys; sys.exit('x: error: unrecognized arguments: --x')", url="http://127.0.0.1:1/")
    async with running(bad, server("g", Role.GATEWAY), coming=lambda role: role is Role.ENGINE) as at_work:
        await at_work.until(events.GaveUp, "bad")
        assert await at_work.supervisor.add(server("e")) is None
        await at_work.supervisor.remove("e")
        assert not at_work.task.done()
        at_work.stop.set()
        assert await at_work.ended() == 0


async def test_a_gateway_says_by_its_exit_code_that_another_start_is_no_use() -> None:
    code = "import sys; sys.exit(2)"
    gateway = program("g", code, role=Role.GATEWAY, url="http://127.0.0.1:1/")
    gateway = Program(
        "g",
        Role.GATEWAY,
        gateway.argv,
        gateway.env,
        ready_url=gateway.ready_url,
        final_codes=frozenset({2}),
        policy=QUICK,
    )
    async with running(gateway, server("e")) as at_work:
        assert await at_work.ended() == 1
        assert len(at_work.of(events.Launched, "g")) == 1


async def test_a_program_that_does_not_exist_is_given_up_at_once() -> None:
    missing = Program("e", Role.ENGINE, ("/no/such/python",), {}, policy=QUICK)
    async with running(missing) as at_work:
        assert await at_work.ended() == 1
        assert "No such file" in at_work.of(events.GaveUp)[0].diagnosis.cause


async def test_what_ignores_sigterm_is_killed_after_its_bound_with_its_children() -> None:
    code = """
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print(child.pid, flush=True)
        time.sleep(600)
    """
    policy = Policy(stop_timeout=0.2)
    async with running(program("e", code, policy=policy)) as at_work:
        await at_work.until(events.LinePrinted)
        child = pid_of(at_work, "e")
        at_work.stop.set()
        assert await at_work.ended() == 0
        assert at_work.of(events.Overdue)
        assert eventually(lambda: not is_alive(child))


async def test_a_start_that_never_gets_ready_is_killed_and_tried_again() -> None:
    policy = Policy(start_timeout=0.2, max_restarts=1, backoff=0.01)
    deaf = program("e", "import time; time.sleep(600)", policy=policy, url=f"http://127.0.0.1:{free_port()}/")
    async with running(deaf) as at_work:
        assert await at_work.ended() == 1
        assert len(at_work.of(events.Overdue)) == 2


async def test_a_stop_while_it_starts_ends_it() -> None:
    starting = program("e", "import time; time.sleep(600)", url=f"http://127.0.0.1:{free_port()}/")
    async with running(starting) as at_work:
        await at_work.until(events.Launched)
        at_work.stop.set()
        assert await at_work.ended() == 0
        assert at_work.of(events.Stopped)


async def test_the_input_is_given_again_at_each_start() -> None:
    code = "import sys; print('read', sys.stdin.read(), flush=True); sys.exit(1)"
    argv = (sys.executable, "-S", "-c", code)
    fed = Program("g", Role.GATEWAY, argv, dict(os.environ), stdin=b"settings", follows_log=True, policy=QUICK)
    async with running(fed) as at_work:
        assert await at_work.ended() == 1
        assert [line.text for line in at_work.of(events.LinePrinted)] == ["read settings"] * 3


async def test_cancelling_kills_everything() -> None:
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    async with running(program("e", code)) as at_work:
        await at_work.until(events.LinePrinted)
        pid = pid_of(at_work, "e")
    assert eventually(lambda: not is_alive(pid))


async def test_an_engine_is_ready_only_when_it_answers() -> None:
    slow = server("e")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        late = program("late", "import time; time.sleep(600)", url=f"http://127.0.0.1:{other.getsockname()[1]}/")
        async with running(slow, late) as at_work:
            await at_work.until(events.BecameReady, "e")
            assert not at_work.of(events.BecameReady, "late")


async def test_a_program_is_added_beside_the_others_and_another_one_removed() -> None:
    async with running(server("old"), server("g", Role.GATEWAY)) as at_work:
        await at_work.until(events.BecameReady, times=2)
        assert await at_work.supervisor.add(server("new")) is None
        assert at_work.of(events.BecameReady, "new")
        await at_work.supervisor.remove("old")
        assert at_work.of(events.Stopped, "old")
        assert not at_work.supervisor.tell("old", b"gone"), "nor is it an error"
        assert not at_work.task.done()
        at_work.stop.set()
        assert await at_work.ended() == 0
        assert len(at_work.of(events.Stopped)) == 3


async def test_what_cannot_be_added_is_gone_again_and_says_why() -> None:
    failing = program("new", "import sys; sys.exit('ValueError: no')", url="http://127.0.0.1:1/")
    async with running(server("old")) as at_work:
        await at_work.until(events.BecameReady)
        diagnosis = await at_work.supervisor.add(failing)
        assert diagnosis is not None
        assert "ValueError: no" in diagnosis.cause
        assert len(at_work.of(events.Launched, "new")) == 1
        assert not at_work.task.done()


async def test_what_ran_before_is_started_again_and_again_though_its_first_start_fails() -> None:
    async with running(server("old")) as at_work:
        await at_work.until(events.BecameReady)
        at_work.supervisor.launch(program("new", "import sys; sys.exit('ValueError: no')", url="http://127.0.0.1:1/"))
        await at_work.until(events.GaveUp, "new")
        assert len(at_work.of(events.Launched, "new")) > 2, "one that never ran would be given up by now"
        await at_work.supervisor.remove("new")


async def test_nothing_is_added_where_its_role_is_ending() -> None:
    """Else it would run on, and the supervisor with it."""
    slow = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))
        time.sleep(60)
    """
    async with running(program("e0", slow), server("g", Role.GATEWAY)) as at_work:
        await at_work.until(events.BecameReady, times=2)
        at_work.stop.set()
        await at_work.until(events.Stopping, "e0")
        failure = await at_work.supervisor.add(server("e1"))
        assert failure == Diagnosis("kvgate is stopping.")
        assert await at_work.ended() == 0
        assert at_work.of(events.Launched, "e1") == []


async def test_the_last_engine_may_be_exchanged_but_not_lost() -> None:
    async with running(server("old"), server("g", Role.GATEWAY)) as at_work:
        await at_work.until(events.BecameReady, times=2)
        with at_work.supervisor.changing():
            await at_work.supervisor.remove("old")
            assert await at_work.supervisor.add(server("new")) is None
        bad = program("bad", "import sys; sys.exit('x: error: unrecognized arguments: --x')")
        assert not at_work.task.done()
        with at_work.supervisor.changing():
            await at_work.supervisor.remove("new")
            await at_work.supervisor.add(bad)
        at_work.stop.set()
        assert await at_work.ended() == 0


LEAVING = """
    import os, signal, time
    signal.signal(signal.SIGUSR1, lambda *_: (print("handing over", flush=True), time.sleep(0.3), os._exit(0)))
    os.write(int(os.environ["KVGATE_NEWS_FD"]), b"ready\\nhung 127.0.0.1:1\\n")
    time.sleep(600)
"""


async def test_two_gateways_run_until_the_old_one_has_handed_over() -> None:
    old, new = (replace(program(name, LEAVING, role=Role.GATEWAY), tells=True) for name in ("old", "new"))
    async with running(server("e"), old) as at_work:
        await at_work.until(events.BecameReady, times=2)
        assert await at_work.supervisor.add(new) is None
        await at_work.supervisor.remove("old", by=signal.SIGUSR1)
        assert [line.text for line in at_work.of(events.LinePrinted, "old")] == ["handing over"]
        assert at_work.of(events.Stopped, "old")
        assert at_work.news == [("old", "hung 127.0.0.1:1"), ("new", "hung 127.0.0.1:1")]
        assert not at_work.task.done()


async def test_a_stop_reaches_a_gateway_that_hands_over() -> None:
    slow = LEAVING.replace("time.sleep(0.3)", "time.sleep(600)")
    async with running(server("e"), replace(program("old", slow, role=Role.GATEWAY), tells=True)) as at_work:
        await at_work.until(events.BecameReady, times=2)
        leaving = asyncio.create_task(at_work.supervisor.remove("old", by=signal.SIGUSR1))
        await at_work.until(events.LinePrinted, "old")
        at_work.stop.set()
        assert await at_work.ended() == 0
        assert not at_work.of(events.Overdue)
        await leaving


async def test_what_says_itself_when_it_is_ready_is_not_ready_before() -> None:
    quiet = replace(
        program("g", "import time; time.sleep(600)", policy=Policy(start_timeout=0.3, max_restarts=0)), tells=True
    )
    async with running(quiet) as at_work:
        assert await at_work.ended() == 1
        assert not at_work.of(events.BecameReady)


async def test_what_hangs_is_killed_and_started_again_for_that_reason() -> None:
    async with running(server("e")) as at_work:
        await at_work.until(events.BecameReady)
        at_work.supervisor.hung("e", "It hung: no progress for 90 s.")
        await at_work.until(events.BecameReady, times=2)
        assert [event.diagnosis.cause for event in at_work.of(events.Crashed)] == ["It hung: no progress for 90 s."]


async def test_a_program_that_was_changed_to_fit_is_known_as_it_runs() -> None:
    fits = server("e")

    def refit(_: Diagnosis) -> Refit:
        return Refit(fits, "less", 1)

    failing = replace(program("e", "raise SystemExit('ValueError: no')", url=fits.ready_url), refit=refit)
    async with running(failing) as at_work:
        await at_work.until(events.BecameReady)
        assert at_work.supervisor.program("e").argv == fits.argv


PARENT = """
import asyncio, os, sys
from engine.program import Program, Role
from engine.supervisor import Supervisor
code = (
    "import os, subprocess, time; child = subprocess.Popen(['sleep', '600']);"
    "print(os.getpid(), child.pid, flush=True); time.sleep(600)"
)
programs = [Program(f"e{i}", Role.ENGINE, (sys.executable, "-c", code), dict(os.environ)) for i in range(2)]
asyncio.run(Supervisor(programs, lambda event: None).run(asyncio.Event()))
"""


def test_a_parent_killed_with_sigkill_leaves_no_orphan() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in parent.stdout.readline().split()]
        assert len(pids) == 4
        assert all(map(is_alive, pids))
        parent.kill()
    assert eventually(lambda: not any(map(is_alive, pids)))


async def test_a_program_whose_url_is_none_fails_alone() -> None:
    patient = Policy(start_timeout=2, stop_timeout=5, max_restarts=0)
    odd = program("odd", "import time; time.sleep(600)", policy=patient, url="http://::1:8080/livez")
    async with running(server("good"), odd) as at_work:
        await at_work.until(events.GaveUp, "odd")
        await at_work.until(events.BecameReady, "good")
        at_work.stop.set()
        assert await at_work.ended() == 0


async def test_a_program_goes_on_as_another_and_a_restart_is_that_one() -> None:
    hears = """
    import os, socket, sys
    supervisor = socket.socket(fileno=int(os.environ["KVGATE_NEWS_FD"])).makefile("rw", buffering=1)
    supervisor.write("ready\\n")
    print("began", sys.stdin.read(), flush=True)
    print("heard", supervisor.readline(), flush=True)
    supervisor.readline()
    """
    gateway = replace(program("g", hears, role=Role.GATEWAY), tells=True, stdin=b"one")
    async with running(server("e"), gateway) as at_work:
        await at_work.until(events.BecameReady, "g")
        assert at_work.supervisor.become("g", replace(gateway, stdin=b"two"), b"two")
        assert at_work.supervisor.become("g", replace(gateway, stdin=b"two"), b"end")
        await at_work.until(events.BecameReady, "g", times=2)
        await at_work.until(events.LinePrinted, "g", times=3)
        printed = [line.text.strip() for line in at_work.of(events.LinePrinted, "g")]
        assert printed[:3] == ["began one", "heard two", "began two"]


async def test_one_that_comes_and_goes_may_go_and_its_start_may_be_broken_off() -> None:
    async with running(server("g", Role.GATEWAY), coming=lambda role: role is Role.ENGINE) as at_work:
        await at_work.until(events.BecameReady)
        assert await at_work.supervisor.add(server("e")) is None
        await at_work.supervisor.remove("e")
        never = program("never", "import time; time.sleep(60)", url="http://127.0.0.1:9/")
        adding = asyncio.create_task(at_work.supervisor.add(never))
        await at_work.until(events.Launched, "never")
        at_work.supervisor.interrupt("never")
        assert str(await asyncio.wait_for(adding, BOUND)).startswith("It was stopped before it was ready")
        dies = program("dies", "import sys; sys.exit(1)", url="http://127.0.0.1:9/")
        assert await at_work.supervisor.add(dies) is not None
        assert not at_work.task.done()
