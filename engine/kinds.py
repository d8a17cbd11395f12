"""The kinds of engine that kvgate launches, and the one that serves a model."""

from engine.llama.kind import LLAMA_SERVER
from engine.plan.gguf import is_gguf
from engine.spec import EngineKind
from engine.vllm.kind import VLLM


def kind_of(model: str) -> EngineKind:
    """The kind of engine that serves a model: a llama-server for a GGUF file, else a vLLM."""
    return LLAMA_SERVER if is_gguf(model) else VLLM
