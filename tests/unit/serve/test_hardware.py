import pytest

from engine.gpu import Gpu, Holder
from gateway.serve.hardware import cards_here, hardware_here, hardware_of, tells

GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def cards(monkeypatch):
    here = [Gpu(0, H100, 81559 * 2**20, 20 * GIB), Gpu(1, H100, 81559 * 2**20, 79 * GIB)]
    monkeypatch.setattr("gateway.serve.hardware.gpus", lambda: tuple(here))
    monkeypatch.setattr("gateway.serve.hardware.holders", lambda index: (Holder(7, GIB),) if index == 0 else ())
    return here


def test_the_freest_cards_are_planned_for(cards):
    here = hardware_here({})
    assert (here.name, here.count, here.free_bytes) == ("h100", 1, 79 * GIB)
    both = hardware_here({}, 2)
    assert (both.count, both.free_bytes) == (2, 20 * GIB)
    assert [process.pid for process in both.processes] == [7]
    assert hardware_here({}, 3) is None


def test_hidden_and_unnamed_cards_do_not_count(cards):
    assert hardware_here({"CUDA_VISIBLE_DEVICES": "0"}).free_bytes == 20 * GIB
    assert hardware_here({}, indices=(0,)).free_bytes == 20 * GIB
    assert len(cards_here({"CUDA_VISIBLE_DEVICES": "1"})) == 1


@pytest.mark.parametrize("value", ["", "-1", "-1,0", " ,0"])
def test_cuda_sees_no_card_that_is_listed_after_none(cards, value):
    assert cards_here({"CUDA_VISIBLE_DEVICES": value}) == []
    assert hardware_here({"CUDA_VISIBLE_DEVICES": value}).cpu


def test_a_machine_without_cards_is_its_memory(cards):
    cards.clear()
    here = hardware_here({}, 2)
    assert here.cpu
    assert 0 < here.free_bytes <= here.total_bytes


def test_what_our_own_processes_hold_counts_as_free(cards):
    (first, _) = cards_here({}, ours={7})
    assert first.free_bytes == 21 * GIB
    assert hardware_of([first], ours={7}).processes == ()
    assert tells([first], {7})
    assert not tells([first], {8})
