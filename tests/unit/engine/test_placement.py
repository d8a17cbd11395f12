import pytest

from engine.placement import PlacementError, place


def test_engines_get_one_gpu_each_in_order() -> None:
    assert place([None] * 3, [0, 1, 2, 3], {}) == (("0",), ("1",), ("2",))


def test_a_single_engine_sees_them_all() -> None:
    assert place([None], [0, 1, 2, 3], {}) == ((),)


def test_a_machine_without_gpus_has_none_to_hand_out() -> None:
    assert place([None, None], [], {}) == ((), ())


def test_gpus_hidden_from_kvgate_are_not_handed_out() -> None:
    assert place([None, None], [0, 1, 2, 3], {"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}) == (("2",), ("GPU-abc",))


def test_a_configured_assignment_is_taken_as_it_is_and_nobody_elses() -> None:
    assert place([(0, 1), (2, 3)], [0, 1, 2, 3], {}) == (("0", "1"), ("2", "3"))
    assert place([None, (0, 2), None], [0, 1, 2, 3], {}) == (("1",), ("0", "2"), ("3",))


@pytest.mark.parametrize(
    ("wanted", "present", "says"),
    [
        ([(7,)], [0, 1], r"no GPU 7; NVML shows \[0, 1\]"),
        ([(0,)], [], "no GPU 0; NVML shows none"),
        ([None] * 3, [0, 1], "3 engines need a GPU each, and 2 of 2 are free"),
        ([(0,), None, None], [0, 1], "2 engines need a GPU each, and 1 of 2 are free"),
    ],
)
def test_what_cannot_be_placed_is_said(wanted: list[tuple[int] | None], present: list[int], says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        place(wanted, present, {})
