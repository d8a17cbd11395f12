from dataclasses import replace
from pathlib import Path

import pytest

from engine.assembly import assembled
from engine.gpu import Gpu
from engine.memory_ladder import Bounds
from engine.program_lifecycle import Policy
from engine.spec import EngineSpec
from engine.vllm.command import DEBUG_ENVIRONMENT
from engine.vllm.kind import VLLM
from gateway.config.engine import EngineSettings
from gateway.config.errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.serve.engine_setup import Seat, debugged, fitted, seats

GIB = 2**30
IDLE, HALF, OTHER = (Gpu(index, "card", 80 * GIB, free * GIB) for index, free in enumerate((79, 40, 79)))


def engine(**more):
    return EngineSettings.model_validate({"model": "org/m", **more})


def spec(*args):
    return EngineSpec(VLLM, "e", "org/m", "m", 1, Path("/python"), args=args)


def test_replicas_of_several_ranks_get_groups_that_do_not_overlap():
    wanted = [engine(replicas=1, args=["-tp", "2"]), engine()]
    first, second = seats(wanted, [IDLE, HALF, OTHER], {})
    assert (first.gpus, second.gpus) == (("0", "1"), ("2",))
    assert (first.cards, second.cards) == ((IDLE, HALF), (OTHER,))


def test_what_cannot_be_placed_is_a_matter_of_configuration():
    with pytest.raises(ConfigurationError, match="engines: two engines are to have GPU 0"):
        seats([engine(gpus=[[0]]), engine(gpus=[[0]])], [IDLE], {})


def test_gpus_that_only_one_engine_knows_of_are_refused_beside_others():
    hidden = engine(env={"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(ConfigurationError, match="give `gpus`"):
        seats([hidden, engine()], [IDLE, HALF], {})
    seats([hidden], [IDLE, HALF], {})
    seats([hidden, engine()], [], {})


def test_engines_of_one_group_have_the_same_gpus_each_for_itself():
    turns = {"on_demand": True, "group": "card"}
    first, beside, second = seats(
        [engine(**turns), engine(), engine(args=["-tp", "2"], **turns)], [IDLE, HALF, OTHER], {}
    )
    assert first == second
    assert (first.gpus, first.engines, beside.gpus) == (("0", "1"), 1, ("2",))
    with pytest.raises(ConfigurationError, match="'card' take turns on the same GPUs"):
        seats([engine(gpus=[[0]], **turns), engine(gpus=[[1]], **turns)], [IDLE, HALF], {})


def test_a_single_engine_is_measured_on_the_gpu_it_will_use():
    (seat,) = seats([engine()], [IDLE, HALF], {"CUDA_VISIBLE_DEVICES": "1"})
    assert (seat.gpus, seat.cards) == ((), (HALF,))
    assert fitted(spec(), engine(), seat)[0].args == ("--gpu-memory-utilization", "0.49")


def test_a_single_engine_may_say_itself_which_gpu_it_sees():
    (seat,) = seats([engine(env={"CUDA_VISIBLE_DEVICES": "1"})], [IDLE, HALF], {})
    assert seat.cards == (HALF,)
    (seat,) = seats([engine(env={"CUDA_VISIBLE_DEVICES": ""})], [IDLE, HALF], {})
    assert seat.cards == ()


def test_engines_that_share_a_card_share_its_memory():
    sharing = engine(gpus=[[0]], share_gpu=True)
    for seat in seats([sharing, sharing], [IDLE], {}):
        assert fitted(spec(), sharing, seat)[0].args == ("--gpu-memory-utilization", "0.49")


@pytest.mark.parametrize(
    ("devices", "args", "filled"),
    [
        (("0",), (), ("--gpu-memory-utilization", "0.49")),
        (("1",), ("--gpu-memory-utilization", "0.4"), ("--gpu-memory-utilization", "0.89")),
        (("1",), ("--gpu-memory-utilization=0.5",), ()),
        (("1",), (), ()),
        ((), (), ("--gpu-memory-utilization", "0.49")),
        ((), ("-tp", "2"), ()),
    ],
)
def test_memory_held_by_an_engine_of_ours_is_not_taken_for_somebody_elses(devices, args, filled):
    running = [assembled(replace(spec(*args), gpus=devices), Policy())]
    (seat,) = seats([engine(gpus=[[1]])], [IDLE, HALF], {}, running)
    assert fitted(spec(), engine(gpus=[[1]]), seat)[0].args == filled


def test_an_engine_that_sees_no_gpu_holds_none():
    """An empty CUDA_VISIBLE_DEVICES hides them all."""
    running = [assembled(replace(spec(), env={"CUDA_VISIBLE_DEVICES": ""}), Policy())]
    (seat,) = seats([engine(gpus=[[1]])], [IDLE, HALF], {}, running)
    assert seat.cards == (HALF,)
    running = [assembled(replace(spec(), env={"CUDA_VISIBLE_DEVICES": "1"}), Policy())]
    assert seats([engine(gpus=[[1]])], [IDLE, HALF], {}, running)[0].cards[0].free_bytes == HALF.total_bytes


def test_engines_that_share_a_card_have_its_parts_again_when_one_of_them_is_replaced():
    sharing = engine(gpus=[[0]], share_gpu=True)
    full = Gpu(0, "card", 80 * GIB, GIB // 2)
    running = [assembled(replace(spec("--gpu-memory-utilization", "0.49"), gpus=("0",)), Policy())] * 2
    for seat in seats([sharing, sharing], [full], {}, running):
        assert fitted(spec(), sharing, seat)[0].args == ("--gpu-memory-utilization", "0.48")


def test_what_is_filled_in_is_told_and_may_be_lowered_and_what_was_given_may_not():
    given = ("--max-model-len", "4096")
    settings = engine(gpus=[[0, 1]], args=given, min_model_len=1024)
    made, choices, bounds = fitted(spec(*given), settings, Seat(("0", "1"), (IDLE, HALF), on_gpus=True))
    assert made.args == (*given, "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.49")
    assert choices == (
        "--tensor-parallel-size 2: `gpus` gives this engine 2 of them",
        "--gpu-memory-utilization 0.49: GPU 1 has 40.0 of 80.0 GiB free",
    )
    assert bounds == Bounds(frozenset({"--max-model-len"}), 1024, on_gpus=True)


def test_fit_off_lowers_nothing():
    assert fitted(spec(), engine(fit="off"), Seat(()))[2] is None


def test_debugging_is_for_every_engine_and_its_own_environment_wins():
    models = [{"engine": {"model": "a", "env": {"NCCL_DEBUG": "WARN"}}}, {"endpoints": [{"url": "http://a:1"}]}]
    first, second = debugged(Settings.model_validate({"models": models})).models
    seen = {name: value.get_secret_value() for name, value in first.engine.env.items()}
    assert seen == {**DEBUG_ENVIRONMENT, "NCCL_DEBUG": "WARN"}
    assert second.engine is None
