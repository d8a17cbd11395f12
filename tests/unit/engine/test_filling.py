import pytest

from engine.arguments import Arguments
from engine.filling import filled, gpus_needed
from engine.gpu import Gpu
from engine.plan.budget import CONTEXT_BYTES

GIB = 2**30


def card(free: float, index: int = 0, total: float = 80) -> Gpu:
    return Gpu(index, "card", round(total * GIB), round(free * GIB))


def added(*args: str, cards: list[Gpu], named: bool = True, engines: int = 1) -> list[str]:
    return [str(fill) for fill in filled(Arguments.parse(args), cards, named=named, engines=engines)]


def test_nothing_is_added_on_an_idle_card_or_without_any() -> None:
    assert added(cards=[]) == []
    assert added(cards=[card(79.2)]) == []
    assert added(cards=[card(15.6, total=16)]) == []


def test_memory_that_others_hold_is_left_to_them() -> None:
    assert added(cards=[card(60.5), card(50.5, 1)])[1:] == [
        "--gpu-memory-utilization 0.62: GPU 1 has 50.5 of 80.0 GiB free"
    ]
    full = round(80 * GIB * 0.92)
    assert added(cards=[Gpu(0, "card", 80 * GIB, full + CONTEXT_BYTES - 1)]) == [
        "--gpu-memory-utilization 0.91: GPU 0 has 74.2 of 80.0 GiB free"
    ]


def test_a_card_without_any_room_is_left_to_the_engine_to_refuse() -> None:
    assert added(cards=[card(2)]) == []


def test_engines_on_one_card_get_equal_parts() -> None:
    assert added(cards=[card(79.5)], engines=2) == [
        "--gpu-memory-utilization 0.49: GPU 0 has 79.5 of 80.0 GiB free, which 2 engines share"
    ]


def test_several_gpus_that_are_named_are_all_used() -> None:
    two = [card(79.5), card(79.5, 1)]
    assert added(cards=two) == ["--tensor-parallel-size 2: `gpus` gives this engine 2 of them"]
    assert added(cards=two, named=False) == []


@pytest.mark.parametrize("given", ["-tp=1", "--pipeline-parallel-size", "-dp", "--config"])
def test_what_the_user_said_of_them_stays(given: str) -> None:
    assert added(given, "2", cards=[card(79.5), card(79.5, 1)]) == []


@pytest.mark.parametrize("given", ["--gpu_memory_utilization=0.5", "--config"])
def test_a_share_that_was_given_stays(given: str) -> None:
    assert added(given, cards=[card(40)]) == []


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ((), 1),
        (("-tp", "4"), 4),
        (("--tensor-parallel-size=2", "--pipeline_parallel_size", "3"), 6),
        (("-tp", "2", "-dp", "2"), 4),
        (("-tp", "many"), 1),
        (("--max-model-len", "8k", "-dp", "2"), 2),
    ],
)
def test_an_engine_needs_a_gpu_for_each_of_its_ranks(args: tuple[str, ...], size: int) -> None:
    assert gpus_needed(Arguments.parse(args)) == size
