import pytest

from engine.diagnosis.log_cause import diagnose
from engine.diagnosis.sign import Diagnosis, Kind
from engine.memory_ladder import LADDER, MOST_TRIES, Bounds, Rung, Stop, arguments, environment, next_rung
from engine.vllm.command import KV_SPACE

TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (2048), (0.13 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.02 GiB). Based on the available memory, the estimated "
    "maximum model length is 384. Try increasing `gpu_memory_utilization`"
)
NOTHING_FITS = TOO_LONG.replace("Based on the available memory, the estimated maximum model length is 384. ", "")
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering"
)
LOADING = "ERROR 11-20 18:11:38 [x.py:95] Failed to load model - not enough GPU memory. Try lowering"
AT_WORK = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
HELD = (
    "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 72.9 GiB)."
)
NODE = (
    "ValueError: Available memory on node 0 (5.42/14.5 GiB) on kv cache allocation is less than requested memory for "
    "kv (8.0 GiB). Decrease --kv-cache-memory-bytes"
)
GPU = Bounds(on_gpus=True)
SHORTER = Bounds(min_model_len=256)


def climb(lines: list[str], bounds: Bounds) -> tuple[list[Rung], Stop]:
    """All rungs for an engine whose starts end with these lines, the last of them again and again."""
    tries: list[Rung] = []
    while True:
        line = lines[min(len(tries), len(lines) - 1)]
        step = next_rung(diagnose([line], 1), bounds, tries, LADDER)
        if isinstance(step, Stop):
            return tries, step
        tries.append(step)


@pytest.mark.parametrize(
    ("lines", "bounds", "adds"),
    [
        ([TOO_LONG], Bounds(), ()),
        ([TOO_LONG], Bounds(min_model_len=385), ()),
        ([TOO_LONG], Bounds(min_model_len=384), ("--max-model-len", "384") * 3),
        ([TOO_LONG], Bounds(frozenset({"--max-model-len"}), 256), ("--max-model-len", "384") * 3),
        ([TOO_LONG], GPU, ("--max-num-seqs", "128", "--enforce-eager")),
        ([TOO_LONG, NO_BLOCKS], Bounds(min_model_len=1, on_gpus=True), None),
        ([NOTHING_FITS], SHORTER, ()),
        ([NO_BLOCKS], GPU, ("--max-num-seqs", "128", "--enforce-eager")),
        ([SAMPLER, SAMPLER.replace("1024", "512")], GPU, None),
        ([AT_WORK], GPU, ("--max-num-seqs", "128", "--enforce-eager")),
        ([AT_WORK], Bounds(frozenset({"--max-num-seqs"}), on_gpus=True), ("--enforce-eager",)),
        ([AT_WORK], Bounds(frozenset({"--compilation-config"}), on_gpus=True), ("--max-num-seqs", "128")),
        ([AT_WORK], Bounds(frozenset({"--config"}), on_gpus=True), ()),
        ([LOADING, AT_WORK], GPU, ()),
        ([HELD], GPU, ()),
        ([NODE], GPU, ()),
        ([NODE], Bounds(), ()),
    ],
)
def test_each_failure_has_its_rungs(lines: list[str], bounds: Bounds, adds: tuple[str, ...] | None) -> None:
    tries, stop = climb(lines, bounds)
    assert len(tries) <= MOST_TRIES
    assert stop.tried is bool(tries)
    if adds is not None:
        assert arguments(tries) == adds
    assert all(rung.why for rung in tries)


def test_the_engines_own_estimate_comes_first_then_less_work_space() -> None:
    tries, _ = climb([TOO_LONG, NO_BLOCKS], Bounds(min_model_len=1, on_gpus=True))
    assert arguments(tries) == ("--max-model-len", "384", "--max-num-seqs", "128", "--enforce-eager")


def test_sequences_that_do_not_fit_the_sampler_are_halved_again_and_again() -> None:
    tries, _ = climb([SAMPLER, SAMPLER.replace("1024", "512"), SAMPLER.replace("1024", "256")], GPU)
    assert arguments(tries)[1::2] == ("512", "256", "128")
    one, _ = climb([SAMPLER.replace("1024", "1")], GPU)
    assert arguments(one) == ("--enforce-eager",)


def test_a_kv_cache_that_kvgate_chose_is_made_to_fit_the_machine_and_never_grows() -> None:
    tries, _ = climb([NODE, NODE.replace("5.42", "9.9"), NODE.replace("5.42", "1.2")], Bounds(kv_space=8))
    assert [rung.env for rung in tries] == [{KV_SPACE: "4"}, {KV_SPACE: "3"}]
    assert environment(tries) == {KV_SPACE: "3"}
    assert "4 GiB of KV cache instead of 8: the machine has 5.42 GiB free" in tries[0].why


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.MEMORY])
def test_what_is_not_memory_is_not_retried_into(kind: Kind) -> None:
    facts = {"fits": "384", "requests": "4", "node": "0", "free": "9", "asked": "2048"}
    every = Bounds(min_model_len=1, on_gpus=True, kv_space=8)
    assert next_rung(Diagnosis("c", kind=kind, facts=facts), every, [], LADDER) == Stop()


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Bounds(), "kvgate shortens the context to 384 tokens by itself with engine.min_model_len: 384."),
        (Bounds(min_model_len=1024), "engine.min_model_len asks for 1,024 tokens, and 384 fit."),
    ],
)
def test_the_verdict_says_what_would_fit(bounds: Bounds, says: str) -> None:
    assert climb([TOO_LONG], bounds)[1].summary == says


def test_the_verdict_says_what_was_tried() -> None:
    summary = climb([NO_BLOCKS], GPU)[1].summary
    assert "to no avail: at most 128 sequences at once" in summary
    assert "no CUDA graphs" in summary
    assert "--max-model-len" not in summary


def test_every_rung_of_the_ladder_is_reached() -> None:
    every = Bounds(min_model_len=1, on_gpus=True, kv_space=8)
    failures = [diagnose([line], 1).facts for line in (TOO_LONG, SAMPLER, NO_BLOCKS, NODE)]
    assert all(any(step(facts, every, []) for facts in failures) for step in LADDER)
