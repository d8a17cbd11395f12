import pytest

from engine.gpu_placement import PlacementError, Wish, place

ANY = Wish()


def test_engines_get_one_gpu_each_in_order() -> None:
    assert place([ANY] * 3, [0, 1, 2, 3], {}) == (("0",), ("1",), ("2",))


def test_a_single_engine_sees_them_all() -> None:
    assert place([ANY], [0, 1, 2, 3], {}) == ((),)
    assert place([Wish(size=4)], [0, 1, 2, 3], {}) == ((),)


def test_a_machine_without_gpus_has_none_to_hand_out() -> None:
    assert place([ANY, Wish(size=2)], [], {}) == ((), ())


def test_gpus_hidden_from_kvgate_are_not_handed_out() -> None:
    assert place([ANY, ANY], [0, 1, 2, 3], {"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}) == (("2",), ("GPU-abc",))


def test_a_configured_assignment_is_taken_as_it_is_and_nobody_elses() -> None:
    assert place([Wish((0, 1)), Wish((2, 3))], [0, 1, 2, 3], {}) == (("0", "1"), ("2", "3"))
    assert place([ANY, Wish((0, 2)), ANY], [0, 1, 2, 3], {}) == (("1",), ("0", "2"), ("3",))


def test_a_group_of_ranks_gets_a_gpu_for_each() -> None:
    assert place([Wish(size=2), ANY, Wish(size=4)], list(range(8)), {}) == (("0", "1"), ("2",), ("3", "4", "5", "6"))


def test_engines_share_a_card_only_when_both_say_so() -> None:
    sharing = Wish((0,), shares=True)
    assert place([sharing, sharing, ANY], [0, 1], {}) == (("0",), ("0",), ("1",))
    for one, other in ((sharing, Wish((0,))), (Wish((0,)), sharing)):
        with pytest.raises(PlacementError, match="two engines are to have GPU 0; if they shall share it"):
            place([one, other], [0, 1], {})


@pytest.mark.parametrize(
    ("wanted", "present", "visible", "says"),
    [
        ([Wish((7,))], [0, 1], None, r"no GPU 7; NVML shows \[0, 1\]"),
        ([Wish((0,))], [], None, "no GPU 0; NVML shows none"),
        ([Wish((0,))], [0, 1], "1", "GPU 0 is hidden from kvgate by CUDA_VISIBLE_DEVICES=1"),
        ([ANY] * 3, [0, 1], None, "need 3 GPUs, and 2 of 2 are free"),
        ([Wish((0,)), ANY, ANY], [0, 1], None, "need 2 GPUs, and 1 of 2 are free"),
        ([Wish(size=2), Wish(size=2)], [0, 1, 2], None, "need 4 GPUs, and 3 of 3 are free"),
        ([Wish(size=4)], [0, 1], None, "need 4 GPUs, and 2 of 2 are free"),
        ([ANY], [0, 1], "", "need 1 GPUs, and 0 of 0 are free"),
        ([ANY], [0, 1], "-1,0", "need 1 GPUs, and 0 of 0 are free"),
        ([Wish((0, 1), size=4)], [0, 1, 2, 3], None, r"run on 4 GPUs .* `gpus` names 2: \[0, 1\]"),
        ([Wish((1, 1))], [0, 1], None, r"cannot have a GPU twice: \[1, 1\]"),
    ],
)
def test_what_cannot_be_placed_is_said(wanted: list[Wish], present: list[int], visible: str | None, says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        place(wanted, present, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
