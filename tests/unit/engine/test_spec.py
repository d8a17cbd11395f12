from dataclasses import replace
from pathlib import Path

import pytest

from engine.kinds import kind_of
from engine.llama.kind import LLAMA_SERVER
from engine.spec import EngineKind, EngineSpec, argv, environment
from engine.vllm.kind import VLLM

KINDS = (VLLM, LLAMA_SERVER)


def spec(
    *args: str, kind: EngineKind = VLLM, gpus: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> EngineSpec:
    return EngineSpec(kind, "m/0", "/models/m", "m", 18000, Path("/bin/engine"), gpus, args, env or {})


def environ(of: EngineSpec, inherited: dict[str, str] | None = None, *, local: bool = True) -> dict[str, str]:
    return environment(of, inherited or {}, local_folder=local)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_a_user_adds_comes_last_and_the_engine_listens_for_kvgate_alone(kind: EngineKind) -> None:
    line = argv(spec("--threads", "2", kind=kind))
    assert line[0] == "/bin/engine"
    assert line[-2:] == ("--threads", "2")
    assert line[line.index("--host") :][:4] == ("--host", "127.0.0.1", "--port", "18000")
    assert line[line.index("--model") :][:2] == ("--model", "/models/m")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_kvgate_sets_may_not_be_given(kind: EngineKind) -> None:
    for flag in kind.refused:
        with pytest.raises(ValueError, match=f"{flag} is set by kvgate; use "):
            spec(flag, "1", kind=kind)


def test_a_kind_with_other_words_is_launched_with_them() -> None:
    assert argv(spec(kind=replace(LLAMA_SERVER, words=("-m", "x"))))[:3] == ("/bin/engine", "-m", "x")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("org/model", VLLM),
        ("/models/folder", VLLM),
        ("/models/m.gguf", LLAMA_SERVER),
        ("M.Q4_K_M.GGUF", LLAMA_SERVER),
        ("org/model-GGUF", VLLM),
    ],
)
def test_a_gguf_file_is_for_a_llama_server(model: str, kind: EngineKind) -> None:
    assert kind_of(model) is kind


def test_the_hub_is_left_alone_only_for_local_folders() -> None:
    assert environ(spec(), local=True)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environ(spec(), local=False)
    assert environ(spec(), {"HF_HUB_OFFLINE": "0"})["HF_HUB_OFFLINE"] == "0"


def test_gpus_are_assigned_in_the_order_of_nvml() -> None:
    seen = environ(spec(gpus=("2", "3")), {"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert seen["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ(spec(), {"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environ(spec())


def test_kvgates_own_keys_stay_with_kvgate() -> None:
    seen = environ(spec(), {"KVGATE_AUTH__ADMIN_KEY": "s3cret", "PATH": "/bin"})
    assert seen["PATH"] == "/bin"
    assert not [name for name in seen if name.startswith("KVGATE_")]


def test_a_servers_own_settings_of_a_users_shell_do_not_hide_the_engine() -> None:
    shell = {"LLAMA_API_KEY": "k", "LLAMA_ARG_API_PREFIX": "/x", "LLAMA_ARG_CTX_SIZE": "512"}
    assert environ(spec(kind=LLAMA_SERVER), shell).keys() & shell.keys() == {"LLAMA_ARG_CTX_SIZE"}
    assert environ(spec(), shell).keys() >= shell.keys()
