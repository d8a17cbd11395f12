"""A llama-server gets the settings of the plan for this machine; a second one must fit beside the first."""

from pathlib import Path

import pytest

from engine.gpu import Gpu
from engine.llama import planned
from engine.llama.kind import LLAMA_SERVER
from engine.llama.planned import GIB, filled, shortage
from engine.spec import EngineSpec
from tests.unit.engine.plan.written import LLAMA, tensors, written


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen GiB, of which twelve are free, and four cores."""
    monkeypatch.setattr(planned, "total_bytes", lambda: 16 * GIB)
    monkeypatch.setattr(planned, "free_bytes", lambda: 12 * GIB)
    monkeypatch.setattr(planned, "cores", lambda: 4)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(written(tmp_path / "m.gguf", LLAMA, tensors()))


def card(free: float) -> Gpu:
    return Gpu(0, "NVIDIA H200", 140 * GIB, round(free * GIB))


def words(model: str, *args: str, cards: tuple[Gpu, ...] = ()) -> list[str]:
    return [word for fill in filled(model, args, cards, 1) for word in fill.args]


def test_without_cards_the_host_computes_with_its_cores(model: str) -> None:
    chosen = words(model)
    assert chosen[chosen.index("--device") + 1] == "none"
    assert chosen[chosen.index("--threads") + 1] == "4"
    assert "--kv-unified" in chosen


def test_on_a_card_with_room_all_layers_lie_there(model: str) -> None:
    chosen = words(model, cards=(card(100),))
    assert chosen[chosen.index("--gpu-layers") + 1] == "5"
    assert "--device" not in chosen


def test_what_the_user_gave_stays_and_is_not_said_twice(model: str) -> None:
    chosen = words(model, "-c", "512", "-np", "2")
    assert not {"--ctx-size", "-c", "--parallel", "-np"} & set(chosen)


def test_the_choice_is_told_with_its_memory(model: str) -> None:
    (told,) = filled(model, ["-c", "512"], (), 1)
    assert "4 slots share 512 tokens of KV cache; with the weights 0." in told.why


def test_a_model_that_cannot_be_planned_is_launched_all_the_same(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.gguf")
    assert words(gone) == ["--ctx-size", "16384", "--parallel", "4", "--kv-unified", "--threads", "4"]
    assert words(gone, "-c", "1", "-np", "1", "-kvu", "-t", "1") == []
    (told,) = filled(gone, [], (), 1)
    assert told.why.startswith("it cannot be planned: ")


def test_one_that_cannot_fit_says_what_it_lacks(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "free_bytes", lambda: GIB // 8)
    (told,) = filled(model, ["-c", "1000000"], (), 1)
    assert "the nearest to fitting lacks" in told.why


def spec(model: str, *args: str) -> EngineSpec:
    return EngineSpec(LLAMA_SERVER, "m", model, "m", 1, Path("/bin/llama-server"), args=args)


def test_a_second_one_needs_its_memory_where_its_layers_lie(model: str) -> None:
    on_host = spec(model, *words(model))
    assert shortage(on_host, (), 12 * GIB) is None
    assert "the machine has 0.0 GiB of memory to give" in str(shortage(on_host, (), 1))
    on_card = spec(model, *words(model, cards=(card(100),)))
    assert shortage(on_card, (card(100),), 12 * GIB) is None
    assert "a card has 0.0 GiB free" in str(shortage(on_card, (card(0),), 12 * GIB))


def test_of_what_cannot_be_read_nothing_is_known(tmp_path: Path) -> None:
    assert shortage(spec(str(tmp_path / "gone.gguf")), (), 12 * GIB) == "the memory it takes is not known"


def test_settings_that_are_all_given_are_not_told_again(model: str) -> None:
    assert filled(model, words(model), (), 1) == ()
