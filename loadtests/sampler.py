"""A sampling profiler inside the profiled process: runs kvgate and notes where its CPU time goes.

    python -m loadtests.sampler OUT [kvgate's arguments]

It samples by CPU time, so waiting shows nothing. SIGUSR2 begins, and again ends and writes `OUT`. Each line of it is a
stack, outermost frame first, and the CPU seconds that its thread took there.
"""

import dis
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from gateway.__main__ import main as kvgate

INTERVAL = 0.001
"""CPU seconds between two samples."""
LOOP = "loop"
"""Stands for the event loop itself, and the kernel."""
_RUNNER = "asyncio.runners:Runner.run"
"""Innermost of all frames outside the event loop."""
_RESUME = dis.opmap["RESUME"]
"""The instruction at which a function begins."""


class Sampler:
    """Sums up where each thread's CPU time goes.

    Python handles a signal between two instructions. So the time of a system call or of a C function shows in the frame
    that called it, or in a function that only begins, which is left out: what went before is its caller's.
    """

    def __init__(self) -> None:
        self.stacks: Counter[str] = Counter()
        """CPU time by stack, in ns."""
        self._until: dict[int, int] = {}
        """CPU time of each thread at its last sample, in ns."""
        self._names: dict[CodeType, str] = {}

    def begin(self) -> None:
        """Sample from now on."""
        self.stacks.clear()
        self._until = {thread: _cpu(thread) for thread in _threads()}
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def end(self) -> None:
        """Sample no more."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        mine = threading.get_ident()
        frames = {**sys._current_frames(), mine: frame}  # noqa: SLF001  # there is no other way
        for thread in _threads():
            now, before = _cpu(thread), self._until.get(thread, 0)
            self._until[thread] = now
            spent = now - before if now >= before else now  # a new thread may have the number of one that ended
            at = frames.get(thread)
            if spent and at is not None:
                self.stacks[self._stack(at)] += spent
        self._until[mine] = _cpu(mine)  # the sample itself does not count

    def _stack(self, frame: FrameType) -> str:
        outer = frame.f_back
        begins = outer is not None and frame.f_code.co_code[frame.f_lasti] == _RESUME
        names = [self._name(each) for each in _outwards(outer if begins else frame)]
        if names[0] == _RUNNER:
            names.insert(0, LOOP)
        return ";".join(reversed(names))

    def _name(self, frame: FrameType) -> str:
        code = frame.f_code
        known = self._names.get(code)
        if known is None:
            module = str(frame.f_globals.get("__name__", "?"))
            known = self._names[code] = f"{module}:{code.co_qualname}".replace(";", ",").replace(" ", "_")
        return known


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _threads() -> list[int]:
    return [thread.ident for thread in threading.enumerate() if thread.ident is not None]


def _cpu(thread: int) -> int:
    return time.clock_gettime_ns(time.pthread_getcpuclockid(thread))


def write(stacks: Counter[str], out: Path) -> None:
    """Write stacks, in one step: who waits for the file finds it whole."""
    part = out.with_suffix(".part")
    part.write_text("".join(f"{stack} {spent / 1e9:.9f}\n" for stack, spent in stacks.items()))
    part.rename(out)


def main() -> None:
    """Entry point."""
    out, sys.argv = Path(sys.argv[1]), ["kvgate", *sys.argv[2:]]
    sampler, running = Sampler(), False

    def turn(*_: object) -> None:
        nonlocal running
        running = not running
        if running:
            sampler.begin()
        else:
            sampler.end()
            write(sampler.stacks, out)

    signal.signal(signal.SIGUSR2, turn)
    kvgate()


if __name__ == "__main__":
    main()
