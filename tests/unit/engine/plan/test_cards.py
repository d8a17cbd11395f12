import pytest

from engine.plan.cards import CARDS, GIB, MIB, Hardware, SizeError, UnknownCardError, find, of_driver, parse_bytes


def test_every_card_is_found_by_its_name_and_by_the_drivers():
    assert len({card.name for card in CARDS}) == len(CARDS)
    for card in CARDS:
        assert find(card.name) is card
        assert 0.9 * card.driver_mib * MIB < card.total_bytes < card.driver_mib * MIB, card.name


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("H100", "h100"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX4090", "rtx-4090"),
        ("a100 80GB", "a100"),
        ("a100-40gb", "a100-40gb"),
    ],
)
def test_a_card_is_found_however_it_is_written(said, meant):
    assert find(said).name == meant


def test_a_name_nobody_knows_is_answered_with_the_nearest():
    with pytest.raises(UnknownCardError, match=r"no card named h10 .*h100.*--vram 24GiB"):
        find("h10")


def test_a_name_of_several_cards_is_answered_with_them():
    with pytest.raises(UnknownCardError, match=r"rtx-3090, .*rtx-4090"):
        find("rtx")


@pytest.mark.parametrize(
    ("name", "mib", "card"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA H100 NVL", 95830, "h100-nvl"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100"),
        ("NVIDIA A10G", 23028, "a10g"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA H20", 97871, "h20"),
    ],
)
def test_what_the_driver_says_becomes_what_cuda_has(name, mib, card):
    found, total = of_driver(name, mib * MIB)
    assert found is find(card)
    assert total == find(card).total_bytes


def test_a_slice_of_a_card_has_less_than_the_card():
    found, total = of_driver("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40192 * MIB)
    assert found
    assert found.capability == 80
    assert total < 40192 * MIB
    assert of_driver("Some new card", 100 * GIB) == (None, round(98.5 * GIB))


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * GIB), ("24GB", 24 * 10**9), ("24g", 24 * 10**9), ("1.5 TiB", 1536 * GIB)]
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "24", "-3GiB"])
def test_what_is_no_size_is_said(text):
    with pytest.raises(SizeError, match="24GiB"):
        parse_bytes(text)


def test_a_generation_decides_what_a_card_can():
    assert Hardware("x", 1, GIB, capability=80).can(80)
    assert not Hardware("x", 1, GIB, capability=75).can(80)
    assert Hardware("x", 1, GIB).can(80), "one nobody knows is taken for a recent one"
    assert not Hardware("x", 1, GIB, cpu=True).can(80)
