"""A plan's weights, KV cache and buffers against what a real llama-server prints of the same files."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.plan.gguf import read_gguf
from engine.plan.llama.memory import Part, measure
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.settings import LlamaSettings, read_given

pytestmark = pytest.mark.engine
pytest.importorskip("xllamacpp", reason="there is no build of it for this machine", exc_type=ImportError)

from tests.gguf_models import MADE, write  # noqa: E402 - not before it is known that there is a server for them
from tests.llama_buffers import Buffers, buffers, buffers_of_card, server_with_card  # noqa: E402

TOLERANCE = 0.03
ROUNDED = 0.01
"""MiB: what is printed has two digits after the point."""
MIB = 2**20

RUNS: Mapping[str, Mapping[str, Any]] = {
    "shared": {"ctx": 4096},
    "split": {"ctx": 4096, "split": True},
    "8 bits": {"ctx": 8192, "cache": "q8_0", "ubatch": 256, "slots": 2},
    "one slot": {"ctx": 1000, "slots": 1},
}


@pytest.fixture(scope="module", params=MADE)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = write(MADE[request.param], tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf")
    yield path
    path.unlink()


def planned(file: Path, run: Mapping[str, Any]) -> Part:
    cache = run.get("cache", "f16")
    settings = LlamaSettings(
        0, run["ctx"], run.get("slots", 4), not run.get("split"), cache, cache, ubatch=run.get("ubatch", 512)
    )
    return measure(LlamaModel.of(read_gguf(str(file))), settings, cards=0).host


def off(planned_bytes: int, printed: Mapping[str, float]) -> float:
    """How far a plan is off what was printed, beyond rounding."""
    real = sum(printed.values())
    return max(0.0, abs(planned_bytes / MIB - real) - ROUNDED * max(1, len(printed))) / max(real, ROUNDED)


@pytest.mark.parametrize("name", RUNS)
def test_weights_cache_and_buffers_are_what_llama_server_prints(file: Path, name: str) -> None:
    run = RUNS[name]
    part, real = planned(file, run), buffers(file, **run)
    assert off(part.weights, real.model) < TOLERANCE
    assert off(part.kv, real.kv) < TOLERANCE
    compute = sum(real.compute.values()) + real.output
    assert part.compute.low <= compute * MIB <= part.compute.high


def test_mapped_weights_are_as_large(file: Path) -> None:
    assert off(planned(file, RUNS["shared"]).weights, buffers(file, ctx=4096, mapped=True).model) < TOLERANCE


SPLITS = ("-ngl 99", "-ngl 4", "-ngl 1", "-ngl 99 -nkvo", "-ngl 99 -ncmoe 2", "-ngl 99 -np 2 -c 8192 --no-kv-unified")


@pytest.fixture(scope="module")
def server() -> str:
    return server_with_card() or pytest.skip("there is no llama-server with a card in the PATH")


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_between_card_and_host_is_what_llama_server_prints(file: Path, server: str, split: str) -> None:
    model = LlamaModel.of(read_gguf(str(file)))
    states = any(layer.kept.state for layer in model.layers)
    if ("moe" in split and not model.has_experts) or ("nkvo" in split and states):
        pytest.skip("no plan says so of this model")
    asked = LlamaSettings(0, 4096)
    settings = replace(asked, **read_given(split.split(), len(model.layers) + 1))
    real = buffers_of_card(server, file, settings.arguments())
    memory = measure(model, settings)
    for part, here in ((memory.cards[0], True), (memory.host, False)):
        weights, kv, compute = (_of(sizes, card=here) for sizes in (real.model, real.kv, real.compute))
        small = 0.02 * model.weights / MIB if "mamba" in model.architecture else 0.0  # convolutions that no card can
        assert off(part.weights, weights) < TOLERANCE + small
        assert off(part.kv, kv) < TOLERANCE
        there = sum(compute.values()) + (0.0 if here else real.output)
        assert part.compute.low <= there * MIB <= part.compute.high


def _of(sizes: Mapping[str, float], *, card: bool) -> dict[str, float]:
    """Those of a card, or of the host: its own, and what it keeps ready for a card."""
    return {name: size for name, size in sizes.items() if (name.startswith("CPU") or name.endswith("_Host")) != card}


def test_the_log_of_a_card_is_read_by_its_devices() -> None:
    """The lines of a llama-server with cards, whose caches are of two parts."""
    log = """
load_tensors:        CUDA0 model buffer size =  4156.00 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =     2.00 MiB
sched_reserve:      CUDA0 compute buffer size =   258.50 MiB
sched_reserve:  CUDA_Host compute buffer size =    16.01 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
"""
    read = Buffers.read(log)
    assert read.model == {"CUDA0": 4156.0, "CPU_Mapped": 281.81}
    assert read.kv == {"CUDA0": 578.0}
    assert read.compute == {"CUDA0": 258.5, "CUDA_Host": 16.01}
    assert read.output == 0.49
