from pathlib import Path

import pytest

from engine.gpu import Gpu
from engine.room import CPU_PROCESSES, shortage
from engine.spec import EngineSpec
from engine.vllm.command import GIB
from engine.vllm.kind import VLLM


def spec(args):
    return EngineSpec(VLLM, "e", "m", "m", 1, Path("/python"), args=args)


def card(index, free):
    return Gpu(index, "card", total_bytes=80 * GIB, free_bytes=free * GIB)


@pytest.mark.parametrize(
    ("argv", "env", "cards", "found"),
    [
        ((), {}, [card(0, 79)], None),
        ((), {}, [card(0, 70)], "GPU 0 has 70.0 GiB free, and a second engine takes 73.6 GiB of it"),
        (("--gpu-memory-utilization", "0.4"), {}, [card(0, 40)], None),
        (("--gpu-memory-utilization=0.6",), {}, [card(0, 40)], "GPU 0 has 40.0"),
        (("--gpu-memory-utilization", "much"), {}, [card(0, 79)], None),
        ((), {"CUDA_VISIBLE_DEVICES": "1"}, [card(0, 0), card(1, 79)], None),
        ((), {"CUDA_VISIBLE_DEVICES": "1"}, [card(0, 79), card(1, 0)], "GPU 1 has 0.0"),
        (("--tensor-parallel-size", "2"), {}, [card(0, 79), card(1, 9)], "GPU 1 has 9.0"),
        (("-tp", "2"), {}, [card(0, 79), card(1, 9)], "GPU 1 has 9.0"),
        (("-tp", "2", "-pp=2"), {}, [card(0, 79), card(1, 79), card(2, 79), card(3, 9)], "GPU 3 has 9.0"),
        ((), {}, [card(0, 79), card(1, 0)], None),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, [card(0, 0)], "the size of its weights is not known"),
        ((), {"CUDA_VISIBLE_DEVICES": "GPU-1f"}, [card(0, 79)], "nothing is known of the memory of GPU GPU-1f"),
    ],
)
def test_on_gpus_vllms_own_share_must_be_free(argv, env, cards, found):
    said = shortage(
        EngineSpec(VLLM, "e", "m", "m", 1, Path("/python"), args=argv), env, gpus=cards, host_free=0, weights=None
    )
    assert said is None if found is None else said.startswith(found)


@pytest.mark.parametrize(
    ("argv", "env", "free", "weights", "found"),
    [
        ((), {"VLLM_CPU_KVCACHE_SPACE": "4"}, CPU_PROCESSES + 5 * GIB, GIB, None),
        ((), {"VLLM_CPU_KVCACHE_SPACE": "4"}, CPU_PROCESSES + 5 * GIB - 1, GIB, "the machine has 7.0 GiB of memory"),
        (("--kv-cache-memory-bytes", str(GIB)), {}, CPU_PROCESSES + 2 * GIB, GIB, None),
        ((), {}, 1 << 60, None, "the size of its weights is not known"),
        (("--gpu-memory-utilization", "0.5"), {}, 1 << 60, GIB, "the size of its KV cache is not known"),
        (("--kv-cache-memory", "4G"), {}, CPU_PROCESSES + 5 * GIB - 1, GIB, "the machine has 7.0 GiB of memory"),
    ],
)
def test_on_a_cpu_its_weights_and_its_cache_must_fit(argv, env, free, weights, found):
    said = shortage(
        EngineSpec(VLLM, "e", "m", "m", 1, Path("/python"), args=argv), env, gpus=(), host_free=free, weights=weights
    )
    assert said is None if found is None else said.startswith(found)
