"""The checkpoints of a ladder, read from where their names lead."""

from collections.abc import Mapping, Sequence

from engine.arguments import Arguments
from engine.plan.budget import Request
from engine.plan.cards import Hardware
from engine.plan.checkpoint import read_checkpoint
from engine.plan.gguf import is_gguf, read_gguf
from engine.plan.ladder import LlamaRequest
from engine.plan.llama.model import LlamaModel
from engine.plan.shape import ModelShape
from engine.plan.traffic import Traffic


def read_named(
    models: Sequence[str],
    given: Sequence[str],
    hardware: Hardware,
    environ: Mapping[str, str],
    *,
    traffic: Traffic | None = None,
    host_bytes: int | None = None,
) -> tuple[Request | LlamaRequest, ...]:
    """Read the checkpoints of one model, the one to serve first.

    Args:
        models: Folders, hub ids and GGUF files.
        given: Arguments for the engine of the first, and of all that are for the same engine.
        hardware: For vLLM.
        environ: Of the engine.
        traffic: What requests are.
        host_bytes: Free memory of the host.

    Raises:
        engine.plan.hub.CheckpointError: One is missing or cannot be read.
        engine.plan.gguf.GgufError: One is no whole GGUF file.
        engine.plan.shape.UnknownShapeError: The shape of one is not known.
        engine.plan.llama.said.UnknownModelError: Likewise of a GGUF file.
        engine.arguments.ArgumentError: An argument cannot be read.
    """
    for_llama = is_gguf(models[0])
    arguments = Arguments.parse(() if for_llama else given)

    def read(model: str) -> Request | LlamaRequest:
        if is_gguf(model):
            return LlamaRequest(LlamaModel.of(read_gguf(model)), tuple(given) if for_llama else ())
        # A revision is one of the first model's.
        here = arguments if model == models[0] else arguments.without("--revision", "--tokenizer", "--quantization")
        checkpoint = read_checkpoint(model, environ, revision=here.text("--revision"))
        shape = ModelShape.from_config(checkpoint.config)
        weights = checkpoint.weights(shape)
        return Request(model, shape, weights, hardware, here, traffic, host_bytes=host_bytes, environ=environ)

    return tuple(map(read, models))
