"""PURE. Signs of an engine that died at work, and the last words that every failed run has.

Texts: vLLM 0.32 (`v1/engine/core.py`, `v1/executor/multiproc_executor.py`, `v1/utils.py`), CUDA.
"""

import signal
from functools import partial

from engine.diagnosis.sign import Diagnosis, Facts, Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.DEATH, permanent=False)

_DMESG = "Most often the machine ran out of memory: `dmesg` names what was killed."


def _how(facts: Facts) -> Facts:
    """The meaning of a multiprocessing exit code, negative for a signal. An older vLLM does not print it."""
    if not facts["code"]:
        return {"how": "died"}
    code = int(facts["code"])
    try:
        return {"how": f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"}
    except ValueError:
        return {"how": f"ended with exit code {code}"}


SIGNS = (
    _sign(
        "illegal memory access",
        r"CUDA error: an illegal memory access was encountered|CUDA error: misaligned address",
        "A GPU kernel read memory that is not its own: a fault of vLLM, of a kernel library, or of the card.",
        "Give --enforce-eager and another --attention-backend to see which one; `dmesg | grep Xid` shows faults of "
        "the card.",
    ),
    _sign(
        "GPU lost",
        r"CUDA error: (?:unspecified launch failure|device-side assert|uncorrectable ECC|unknown error)|"
        r"GPU is lost|fallen off the bus|Unable to determine the device handle",
        "The GPU failed while it worked.",
        "`dmesg | grep Xid` and `nvidia-smi -q` say how; a card that fell off the bus needs a reboot.",
        weight=Weight.EFFECT,
    ),
    _sign(
        "engine too slow to start",
        r"Timed out waiting for engine core processes to start|Did not receive response from front-end process within",
        "The engine's processes did not find each other in time.",
        "A slow disk, or many engines that start at once: start them one by one, or set "
        "VLLM_ENGINE_READY_TIMEOUT_S=1800.",
        weight=Weight.EFFECT,
    ),
    _sign(
        "worker does not answer",
        r"TimeoutError: RPC call to (?P<call>\w+) timed out",
        "A worker did not answer a call of {call}: it hangs, compiles, or waits for another GPU.",
        "Look for an earlier error of a worker; set VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=600 where kernels are compiled "
        "while serving.",
        weight=Weight.EFFECT,
    ),
    _sign(
        "worker died",
        r"Worker proc (?P<name>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?",
        "The worker {name} {how}.",
        _DMESG,
        weight=Weight.TAIL,
        derive=_how,
    ),
    _sign(
        "process died",
        r"Process (?P<name>\S+) \(PID: (?P<pid>\d+)\) died with exit code (?P<code>-?\d+)",
        "The engine's process {name} {how}.",
        _DMESG,
        weight=Weight.TAIL,
        derive=_how,
    ),
    _sign(
        "died without a word",
        r"EngineDeadError|died unexpectedly|exited unexpectedly",
        "One of the engine's own processes died without a word.",
        _DMESG,
        weight=Weight.TAIL,
    ),
)

SIGNALS: dict[int, Diagnosis] = {
    signal.SIGKILL: Diagnosis("It was killed (SIGKILL).", _DMESG, kind=Kind.DEATH, sign="killed"),
    signal.SIGBUS: Diagnosis(
        "It was killed as it touched memory that is not there (SIGBUS).",
        "Most often /dev/shm is full: give the container `--shm-size 8g` or `--ipc=host`.",
        kind=Kind.DEATH,
        sign="bus error",
    ),
    signal.SIGSEGV: Diagnosis(
        "It crashed in native code (SIGSEGV).",
        "Look for libraries of two versions in its environment; --enforce-eager leaves compiled kernels out.",
        kind=Kind.DEATH,
        sign="segmentation fault",
    ),
    signal.SIGILL: Diagnosis(
        "The processor does not know an instruction this build uses (SIGILL).",
        "Take a build for this processor: vLLM's for x86-64 needs AVX2; a llama.cpp may be built for one machine only.",
        permanent=True,
        kind=Kind.DEATH,
        sign="illegal instruction",
    ),
}
"""The causes of an exit by a signal, for a log that gives none."""
