from dataclasses import replace
from pathlib import Path

import pytest

from engine.diagnosis.machine import GIB, Cache, Card, Download, Holder, Listener, Machine, judge, looked_at, who_holds

CACHE = Cache(Path("/hub"), free=500 * GIB)
FINE = Machine(
    cards=(Card(0, "H100", 80 * GIB, 79 * GIB), Card(1, "H100", 80 * GIB, 79 * GIB)),
    memory=64 * GIB,
    available=60 * GIB,
    shared_memory=32 * GIB,
    cache=CACHE,
    engine="/engine",
)
TRAINER = Holder(41, "python", 40 * GIB)
ENGINE = Holder(42, "VLLM::EngineCor", 70 * GIB)


def taken(*holders: Holder) -> Machine:
    return replace(FINE, cards=(Card(0, "H100", 80 * GIB, 31 * GIB, holders),))


@pytest.mark.parametrize(
    ("machine", "sign", "words"),
    [
        (taken(TRAINER), "GPU memory taken by others", "--gpu-memory-utilization 0.38"),
        (taken(TRAINER), "GPU memory taken by others", "python (process 41) 40.0 GiB"),
        (taken(Holder(7, "x", None)), "GPU memory taken by others", "held by x (process 7)"),
        (taken(), "GPU memory taken by others", "the driver does not name"),
        (replace(FINE, visible=""), "GPU masked", "hides all 2"),
        (replace(FINE, visible="-1,0"), "GPU masked", "hides all 2"),
        (replace(FINE, visible="-1"), "GPU masked", "hides all 2"),
        (replace(FINE, visible="0,4,5"), "GPU masked", "not here: 4, 5"),
        (replace(FINE, oom_kills=2), "killed for memory", "2 processes"),
        (replace(FINE, killed="Out of memory: Killed process 9 (VLLM)"), "killed for memory", "Killed process 9"),
        (replace(FINE, available=GIB), "little main memory", "1.0 GiB"),
        (replace(FINE, available=GIB, limited=True), "little main memory", "--memory"),
        (replace(FINE, shared_memory=64 * 2**20), "too little shared memory", "64 MiB"),
        (replace(FINE, cache=replace(CACHE, free=GIB)), "disk full", "1.0 GiB"),
        (
            replace(FINE, cache=replace(CACHE, downloads=(Download(Path("/hub/a.incomplete"), GIB, 7200.0),))),
            "download broken off",
            "/hub/a.incomplete: 1.0 GiB, for 2.0 h",
        ),
        (replace(FINE, cache=replace(CACHE, locks=(Path("/hub/x.lock"),))), "cache lock waited for", "/hub/x.lock"),
        (replace(FINE, cache=replace(CACHE, broken=(Path("/hub/y"),))), "cache broken", "/hub/y"),
        (replace(FINE, listeners=(Listener(8080, 7, "node"),)), "port taken", "node (process 7)"),
        (replace(FINE, listeners=(Listener(8080),)), "port taken", "--port 8081"),
    ],
)
def test_what_is_wrong_with_a_machine(machine: Machine, sign: str, words: str) -> None:
    (found,) = judge(machine)
    assert found.sign == sign
    assert words in f"{found.cause} {found.remedy} {found.evidence}"
    assert found.remedy


@pytest.mark.parametrize(
    "machine",
    [
        FINE,
        replace(FINE, cards=()),
        replace(FINE, cards=(), visible="0"),
        replace(FINE, cards=FINE.cards[:1], shared_memory=64 * 2**20),
        replace(FINE, visible="1"),
        replace(FINE, visible="GPU-1234"),
        taken(ENGINE),
        replace(FINE, listeners=(Listener(8080, 7, "kvgate", is_kvgate=True),)),
        replace(FINE, cache=replace(CACHE, downloads=(Download(Path("/hub/a.incomplete"), GIB, 1.0),))),
    ],
)
def test_a_machine_with_nothing_wrong(machine: Machine) -> None:
    assert list(judge(machine)) == []
    assert "main memory: 60.0 GiB of 64.0 GiB free (the machine)" in list(looked_at(machine))


def test_what_was_looked_at_names_who_serves_and_loads() -> None:
    loading = replace(CACHE, downloads=(Download(Path("/hub/a.incomplete"), GIB, 1.0),))
    said = "\n".join(looked_at(replace(taken(ENGINE), cache=loading, visible="0")))
    assert "serving: VLLM::EngineCor (process 42) 70.0 GiB" in said
    assert "1 files of the hub cache are being loaded" in said
    assert "CUDA_VISIBLE_DEVICES=0" in said


def test_who_holds_the_gpu_that_a_log_is_about() -> None:
    cards = (Card(0, "H100", 80 * GIB, GIB, (ENGINE,)), Card(1, "H100", 80 * GIB, GIB, (TRAINER,)))
    assert "python (process 41)" in who_holds(cards, {"device": "cuda:1"})
    assert "VLLM" not in who_holds(cards, {"device": "cuda:1"})
    assert "VLLM" in who_holds(cards, {"gpu": "0"})
    assert who_holds((), {"gpu": "0"}) == ""
