from engine.plan.budget import defaults, measure
from engine.plan.cards import GIB, Hardware
from engine.plan.hints import hints
from engine.plan.remedy import Situation
from tests.unit.engine.plan.models import hardware, request


def told(asked):
    settings = defaults(asked)
    return {hint.setting: hint.condition for hint in hints(Situation(asked, settings, measure(asked, settings)))}


def test_room_to_spare_needs_no_hint():
    assert told(request("Llama-3.1-8B")) == {}


def test_a_tight_card_is_told_of_fragmentation_and_of_running_without_graphs():
    found = told(request("Llama-3.1-8B", on=hardware("rtx-4090")))
    assert "reserved by PyTorch but unallocated" in found["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]
    assert "--enforce-eager" in found
    assert "--enforce-eager" not in told(request("Llama-3.1-8B", "--enforce-eager", on=hardware("rtx-4090")))


def test_several_cards_are_told_of_nccl_and_of_their_bridge():
    assert "NCCL_CUMEM_ENABLE=0" in told(request("Llama-3.1-8B", "-tp", "2", on=hardware("h100", 2)))
    found = told(request("Llama-3.1-8B", "-tp", "2", on=hardware("rtx-3090", 2)))
    assert "NCCL_P2P_DISABLE=1" in found


def test_a_cpu_has_none_of_these():
    assert told(request("Llama-3.1-8B", on=Hardware("the CPU", 1, 16 * GIB, cpu=True))) == {}
