import pytest

from engine.plan.groups import UnpackableError, grouped
from engine.plan.layers import Kind
from engine.plan.pages import Page

LETTERS = {"F": Kind.FULL, "W": Kind.SLIDING, "S": Kind.STATE, "L": Kind.MLA}


def layers(pattern: str, sizes: dict[str, int] | None = None) -> list[Page]:
    sizes = sizes or {}
    return [
        Page(index, LETTERS[letter], 16, sizes.get(letter, 64), sizes.get(letter, 64), 512 * (letter == "W"), (1,))
        for index, letter in enumerate(pattern)
    ]


def shape(pattern: str, sizes: dict[str, int] | None = None, *, packed: bool = False) -> list[tuple[str, int]]:
    names = {kind: letter for letter, kind in LETTERS.items()}
    return [(names[group.kind], len(group.pages)) for group in grouped(layers(pattern, sizes), packed=packed)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("FFFF", [("F", 4)]),
        ("WWWW", [("W", 4)]),
        ("SSSS", [("S", 4)]),
        ("WFWF", [("W", 2), ("F", 2)]),
        # Five windows to one full layer: as many layers in each group as there are full ones.
        ("WWWWWF" * 2, [("W", 2)] * 5 + [("F", 2)]),
        # 12 and 13: padding one layer is less than splitting.
        ("WF" * 12 + "F", [("W", 12), ("F", 13)]),
        ("SSSF" * 2, [("S", 2)] * 3 + [("F", 2)]),
        # The last groups are filled with padding.
        ("WWWWWFF", [("W", 2), ("W", 2), ("W", 1), ("F", 2)]),
    ],
)
def test_layers_of_one_page_size_are_split_into_groups_of_one_number(pattern: str, expected: list[object]) -> None:
    assert shape(pattern) == expected


def test_layers_are_dealt_to_groups_so_that_each_pipeline_stage_has_some_of_each() -> None:
    first, second, _ = grouped(layers("WWFWWF"), packed=False)
    assert [page.layer for page in first.pages] == [0, 3]
    assert [page.layer for page in second.pages] == [1, 4]
    assert first.bytes_of(range(3)) == 64


def test_full_layers_of_several_sizes_are_one_group() -> None:
    assert [group.bytes_of(range(4)) for group in grouped(layers("FFLL", {"L": 48}), packed=False)] == [224]


def test_smaller_pages_hold_more_tokens_where_that_divides() -> None:
    window, full = grouped(layers("WF", {"W": 32}), packed=False)
    assert (window.tokens, full.tokens) == (32, 16)


def test_smaller_pages_are_padded_where_that_does_not_divide() -> None:
    window, full = grouped(layers("WF", {"W": 48}), packed=False)
    assert (window.tokens, window.bytes_of(range(2)), full.bytes_of(range(2))) == (16, 64, 64)


def test_a_latent_that_does_not_divide_is_what_vllm_refuses() -> None:
    with pytest.raises(UnpackableError, match="48 bytes"):
        grouped(layers("WL", {"L": 48}), packed=False)


def test_pages_of_several_sizes_lie_side_by_side_in_a_packed_layout() -> None:
    assert shape("WWF", {"W": 32}, packed=True) == [("W", 2), ("F", 1)]
    # Five windows of 32 go into blocks of 64 two by two.
    assert shape("WWWWWF", {"W": 32}, packed=True) == [("W", 2), ("W", 2), ("W", 1), ("F", 1)]


def test_a_packed_layout_changes_nothing_where_all_pages_are_alike() -> None:
    assert shape("WWWF", packed=True) == shape("WWWF")


def test_a_model_that_keeps_nothing_has_no_group() -> None:
    assert grouped([], packed=False) == ()
