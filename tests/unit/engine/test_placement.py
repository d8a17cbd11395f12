import pytest

from engine.placement import PlacementError, place


def test_replicas_get_one_gpu_each_in_order() -> None:
    assert place(3, None, [0, 1, 2, 3], {}) == (("0",), ("1",), ("2",))


def test_a_single_engine_sees_them_all() -> None:
    assert place(1, None, [0, 1, 2, 3], {}) == ((),)


def test_a_machine_without_gpus_has_none_to_hand_out() -> None:
    assert place(2, None, [], {}) == ((), ())


def test_gpus_hidden_from_kvgate_are_not_handed_out() -> None:
    assert place(2, None, [0, 1, 2, 3], {"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}) == (("2",), ("GPU-abc",))


def test_a_configured_assignment_is_taken_as_it_is() -> None:
    assert place(2, [(0, 1), (2, 3)], [0, 1, 2, 3], {}) == (("0", "1"), ("2", "3"))


@pytest.mark.parametrize(
    ("replicas", "wanted", "present", "says"),
    [
        (2, [(0,)], [0, 1], "names GPUs for 1 replicas, and there are 2"),
        (1, [(7,)], [0, 1], r"no GPU 7; NVML shows \[0, 1\]"),
        (1, [(0,)], [], "no GPU 0; NVML shows none"),
        (3, None, [0, 1], "3 replicas need a GPU each, and there are 2"),
    ],
)
def test_what_cannot_be_placed_is_said(
    replicas: int, wanted: list[tuple[int]] | None, present: list[int], says: str
) -> None:
    with pytest.raises(PlacementError, match=says):
        place(replicas, wanted, present, {})
