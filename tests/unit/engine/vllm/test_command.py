from pathlib import Path

import pytest

from engine.spec import EngineSpec, argv, environment
from engine.vllm.command import GIB, REFUSED_FLAGS, kv_space
from engine.vllm.kind import VLLM


def spec(*args: str, gpus: tuple[str, ...] = (), env: dict[str, str] | None = None) -> EngineSpec:
    return EngineSpec(VLLM, "m/0", "/models/m", "m", 18000, Path("/venv/bin/python"), gpus, args, env or {})


def environ(of: EngineSpec, inherited: dict[str, str] | None = None, *, local: bool = True) -> dict[str, str]:
    return environment(of, inherited or {}, local_folder=local)


def test_the_server_module_is_started_not_the_command() -> None:
    line = argv(spec("--max-model-len", "2048"))
    assert line[:3] == ("/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert line[line.index("--served-model-name") :][:2] == ("--served-model-name", "m")
    assert line[line.index("--host") :][:2] == ("--host", "127.0.0.1")
    assert line[line.index("--port") :][:2] == ("--port", "18000")


@pytest.mark.parametrize("flag", REFUSED_FLAGS)
def test_what_kvgate_sets_may_not_be_given(flag: str) -> None:
    for written in (flag, f"{flag}=1", flag.replace("-", "_").replace("__", "--", 1)):
        with pytest.raises(ValueError, match=f"{flag} is set by kvgate"):
            spec(written, "1")


def test_an_abbreviation_of_what_kvgate_sets_may_not_be_given() -> None:
    with pytest.raises(ValueError, match="--served-model-name is set by kvgate"):
        spec("--served-model", "other")


def test_values_that_look_like_flags_elsewhere_are_left_alone() -> None:
    assert spec("--chat-template", "{{ '--model' }}").args[1] == "{{ '--model' }}"


@pytest.mark.parametrize(("memory", "space"), [(4, 1), (24, 3), (64, 8), (512, 8)])
def test_a_cpu_engine_takes_an_eighth_of_the_memory_for_its_kv_cache(memory: int, space: int) -> None:
    assert kv_space(spec(), {}, memory * GIB) == space


def test_a_user_who_says_how_much_kv_cache_is_obeyed() -> None:
    assert environ(spec(env={"VLLM_CPU_KVCACHE_SPACE": "40"}))["VLLM_CPU_KVCACHE_SPACE"] == "40"
    assert environ(spec(), {"VLLM_CPU_KVCACHE_SPACE": "40"})["VLLM_CPU_KVCACHE_SPACE"] == "40"
    for arg in ("--kv-cache-memory-bytes=2G", "--kv-cache-memory", "--gpu_memory_utilization"):
        assert kv_space(spec(arg, "0.5"), {}, 32 * GIB) is None


def test_only_a_kv_cache_that_nobody_named_is_kvgates_choice() -> None:
    assert kv_space(spec(env={"VLLM_CPU_KVCACHE_SPACE": "3"}), {}, 24 * GIB) is None
    assert kv_space(spec(), {"VLLM_CPU_KVCACHE_SPACE": "3"}, 24 * GIB) is None
