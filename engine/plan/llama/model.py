"""PURE. A GGUF model as llama-server lays it out: what each layer weighs, and how wide it is.

From llama.cpp's sources, build 11549: `llama_model_base::load_hparams` and `load_tensors`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.plan.gguf import Gguf, GgufTensor
from engine.plan.llama.kept import Kept, kept, window
from engine.plan.llama.said import Said, UnknownModelError

_MOST_LAYERS = 512
"""llama.cpp's own limit (LLAMA_MAX_LAYERS)."""

_INDEXED = frozenset(
    {"deepseek32", "deepseek4", "glm-dsa", "glm5-next", "dots3note", "minimax-m3", "hy_v4", "qwen4exp"}
)
"""They keep an index of their own beside the KV cache."""

_INPUTS = ("token_embd.", "token_types.", "position_embd.", "token_embd_norm.", "per_layer_token_embd.")
"""Tensors of the input, which stay on the host wherever the layers are."""
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERT = re.compile(r"\.ffn_(up|down|gate|gate_up)_(ch|)exps")
"""What `--n-cpu-moe` keeps on the host (LLM_FFN_EXPS_REGEX in common/common.h)."""
_DENSE = re.compile(r"blk\.\d+\.ffn_(up|gate|down)\.")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        weights: bytes of its tensors without its experts.
        experts: bytes of its experts.
        kept: what it keeps of tokens and requests.
    """

    weights: int
    experts: int
    kept: Kept


@dataclass(frozen=True, slots=True)
class LlamaModel:
    """One model.

    Attributes:
        path: its file, as it was named; of a split model the first.
        architecture: as llama.cpp names it.
        name: that its makers gave it; "" if none.
        blocks: the block type that most of its bytes have.
        trained: tokens of context that it was made for.
        layers: in order.
        idle_layers: layers after those that are not loaded, as they only draft; `--gpu-layers` counts them.
        input: bytes of the input's tensors.
        output: bytes of the output's, without one that is the input's too.
        tied: bytes of the input's tensor that is the output's too, and is there twice if the output is on a card.
        window: tokens of the window; 0 without one.
        hidden: width of a token between layers.
        feed_forward: widest of its dense feed-forward layers; 0 without.
        expert_width: of one expert's feed-forward layer; 0 without experts.
        experts: of a layer; 0 without.
        experts_used: of a layer, for one token.
        heads: most attention heads of a layer.
        head_size: of one of them.
        vocabulary: number of tokens.
        inner: width of a state's input; 0 without states.
        state_inputs: width of what reads and writes a state; 0 without.
        notes: on what is not planned exactly, for a person.
    """

    path: str
    architecture: str
    name: str
    blocks: str
    trained: int
    layers: tuple[Layer, ...]
    idle_layers: int
    input: int
    output: int
    tied: int
    window: int
    hidden: int
    feed_forward: int
    expert_width: int
    experts: int
    experts_used: int
    heads: int
    head_size: int
    vocabulary: int
    inner: int
    state_inputs: int
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> int:
        """Bytes of all that is loaded, each tensor once."""
        return self.input + self.output + sum(layer.weights + layer.experts for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether there are experts, which may stay on the host alone."""
        return any(layer.experts for layer in self.layers)

    @classmethod
    def of(cls, file: Gguf) -> "LlamaModel":
        """Read it from a file's description.

        Raises:
            UnknownModelError: No server serves it, or it does not say what a plan needs.
        """
        said = Said(file)
        _refuse(said, weights=bool(file.tensors))
        count = said.number("block_count")
        if not 1 <= count <= _MOST_LAYERS:
            raise UnknownModelError(f"{file.path} says it has {count} layers; from 1 to {_MOST_LAYERS} can be served")
        idle = min(said.number("nextn_predict_layers", 0), count - 1)
        heads = said.each("attention.head_count", count, 0)
        weights, experts, outside, output = _weighed(file.tensors, count)
        caches = kept(said, count, heads)
        tied = 0 if any(tensor.name == "output.weight" for tensor in file.tensors) else outside["token_embd.weight"]
        hidden = said.number("embedding_length")
        feeds = max(said.each("feed_forward_length", count, 0))
        number_of_experts = said.number("expert_count", 0)
        return cls(
            path=str(file.path),
            architecture=said.architecture,
            name=str(file.metadata.get("general.name", "")),
            blocks=_most(file.tensors),
            trained=said.number("context_length"),
            layers=tuple(
                Layer(weights[number], experts[number], cache) for number, cache in enumerate(caches[: count - idle])
            ),
            idle_layers=idle,
            input=sum(outside.values()),
            output=output,
            tied=tied,
            window=window(said, count),
            hidden=hidden,
            feed_forward=feeds if any(_DENSE.search(tensor.name) for tensor in file.tensors) else 0,
            expert_width=max(said.each("expert_feed_forward_length", count, 0)) or feeds * (number_of_experts > 0),
            experts=number_of_experts,
            experts_used=max(said.each("expert_used_count", count, 0)),
            heads=max(heads),
            head_size=said.number("attention.key_length", hidden // max(heads) if max(heads) else 0),
            vocabulary=file.lengths.get("tokenizer.ggml.tokens", 0) or said.number("vocab_size", 0),
            inner=said.number("ssm.inner_size", 0),
            state_inputs=said.number("ssm.group_count", 0) * said.number("ssm.state_size", 0),
            notes=_notes(said),
        )


def _refuse(said: Said, *, weights: bool) -> None:
    if not said.architecture:
        raise UnknownModelError(f"{said.path} does not say its architecture: it is no model")
    kind = said.metadata.get("general.type", "model")
    if said.architecture == "clip" or kind == "mmproj":
        raise UnknownModelError(
            f"{said.path} is the part of a model that sees or hears: name the file of the model itself, and give "
            f"this one to llama-server with --mmproj"
        )
    if kind == "adapter":
        raise UnknownModelError(f"{said.path} is a LoRA adapter: name the file of its base, and give this with --lora")
    if kind == "imatrix" or said.architecture == "imatrix":
        raise UnknownModelError(f"{said.path} is a matrix for making quantized files, and no model")
    if not weights:
        raise UnknownModelError(f"{said.path} is a vocabulary without weights")


def _weighed(tensors: Sequence[GgufTensor], count: int) -> tuple[list[int], list[int], dict[str, int], int]:
    """Bytes of each layer, of its experts, of each tensor of the input, and of the output."""
    weights, experts = [0] * count, [0] * count
    outside = {"token_embd.weight": 0}
    output = 0
    for tensor in tensors:
        block = _BLOCK.match(tensor.name)
        if tensor.name.startswith(_INPUTS):
            outside[tensor.name] = tensor.bytes
        elif block is None:
            output += tensor.bytes
        elif (number := int(block[1])) < count:
            (experts if _EXPERT.search(tensor.name) else weights)[number] += tensor.bytes
    return weights, experts, outside, output


def _most(tensors: Sequence[GgufTensor]) -> str:
    by_block: dict[str, int] = {}
    for tensor in tensors:
        by_block[tensor.block] = by_block.get(tensor.block, 0) + tensor.bytes
    return max(by_block, key=lambda block: by_block[block])


def _notes(said: Said) -> tuple[str, ...]:
    if said.architecture in _INDEXED:
        return (f"{said.architecture} keeps an index beside its KV cache, which is not counted.",)
    return ()
