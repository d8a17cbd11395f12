"""PURE. Environment variables that help in one case only: shown with their condition, never set."""

from dataclasses import dataclass

from engine.plan.cards import GIB
from engine.plan.remedy import Situation


@dataclass(frozen=True, slots=True)
class Hint:
    """An environment variable that helps in one case: shown, never set."""

    setting: str
    condition: str


def hints(now: Situation) -> tuple[Hint, ...]:
    """Return the hints that may apply here."""
    found = []
    if now.request.hardware.cpu:
        return ()
    if now.budget.kv.low < GIB or not now.budget.fits:
        found.append(
            Hint(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                'when an out-of-memory error says that much is "reserved by PyTorch but unallocated": fragmentation. '
                "Not with a KV connector: vLLM 0.32 refuses the two together",
            )
        )
    if now.settings.world > 1:
        found.append(
            Hint(
                "NCCL_CUMEM_ENABLE=0",
                "when graphs take far more on several cards than on one: NCCL's cuMem buffers cost memory per graph "
                "(github.com/NVIDIA/nccl/issues/1234)",
            )
        )
        if now.request.hardware.nvlink is False:
            found.append(
                Hint(
                    "NCCL_P2P_DISABLE=1", "when the start hangs after 'world_size=': cards behind a bridge without P2P"
                )
            )
    if not now.settings.eager and not now.budget.fits:
        found.append(
            Hint("--enforce-eager", "to do without CUDA graphs: the memory above for graphs, for slower small batches")
        )
    return tuple(found)
