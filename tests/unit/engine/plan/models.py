"""Facts of the config.json of public models, for plans in tests; by Meta and Qwen on the Hugging Face hub."""

from engine.arguments import Arguments
from engine.plan.budget import Request
from engine.plan.cards import Hardware, find
from engine.plan.parameters import estimated
from engine.plan.published import MODELS
from engine.plan.shape import ModelShape

LLAMA_3_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = LLAMA_3_70B | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 131072,
}
GEMMA_3_27B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "vocab_size": 262208,
    },
    "torch_dtype": "bfloat16",
}


def shape(name):
    return ModelShape.from_config({"Llama-3-70B": LLAMA_3_70B, "Gemma-3-27B": GEMMA_3_27B, **MODELS}[name])


def hardware(card="h100", count=1, **known):
    found = find(card)
    kind = {"capability": found.capability, "nvlink": found.nvlink}
    return Hardware(found.name, count, found.total_bytes, **{**kind, **known})


def request(model, *given, on=None, **more):
    model_shape = shape(model)
    return Request(model, model_shape, estimated(model_shape), on or hardware(), Arguments.parse(given), **more)
