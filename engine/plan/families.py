"""PURE. Facts about model families that a config.json omits: defaults, layer patterns, other names of keys.

When Transformers writes a nested `text_config` it omits values equal to a class's defaults, and vLLM reads configs
through those classes. The figures are the defaults of transformers 5.19's config classes. The patterns are from these
classes and from vLLM 0.32's model files.
"""

from collections.abc import Mapping

DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma3n_text": {
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 262400,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "tie_word_embeddings": True,
    },
    "gemma4_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "llama4_text": {
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 202048,
        "max_position_embeddings": 131072,
        "attention_chunk_size": 8192,
        "num_local_experts": 16,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "cohere2": {"sliding_window": 4096, "tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "num_key_value_heads": 8},
    "gpt2": {"tie_word_embeddings": True, "max_position_embeddings": 1024},
    "gpt_bigcode": {"tie_word_embeddings": True, "multi_query": True},
    "opt": {"tie_word_embeddings": True},
    "bloom": {"tie_word_embeddings": True},
    "falcon": {"tie_word_embeddings": True, "multi_query": True},
    "starcoder2": {"tie_word_embeddings": True},
    "phi3": {"max_position_embeddings": 4096},
    "qwen2": {"use_sliding_window": False, "vocab_size": 151936, "max_position_embeddings": 32768},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "head_dim": 128},
    "qwen3_moe": {"use_sliding_window": False},
    "qwen2_vl_text": {"use_sliding_window": False, "num_key_value_heads": 8},
    "qwen2_5_vl_text": {"use_sliding_window": False, "num_key_value_heads": 8},
    "qwen3_vl_text": {"head_dim": 128},
    "qwen3_next": {"full_attention_interval": 4},
    "qwen3_5_text": {"full_attention_interval": 4, "head_dim": 256},
    "qwen3_5_moe_text": {"full_attention_interval": 4, "head_dim": 256},
    "smollm3": {"use_sliding_window": False, "tie_word_embeddings": True},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "max_position_embeddings": 262144,
    },
    "mamba": {"state_size": 16, "conv_kernel": 4, "expand": 2, "tie_word_embeddings": True},
    "falcon_mamba": {"state_size": 16, "conv_kernel": 4, "expand": 2, "tie_word_embeddings": True},
    "mamba2": {
        "state_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "n_groups": 8,
        "num_heads": 128,
        "head_dim": 64,
    },
    "lfm2": {"conv_L_cache": 3, "tie_word_embeddings": True},
    "lfm2_moe": {"conv_L_cache": 3, "tie_word_embeddings": True},
    "nemotron_h": {"head_dim": 128, "mamba_ssm_cache_dtype": "float32"},
    "zamba2": {"tie_word_embeddings": True},
}
"""Defaults of keys, by `model_type`."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
}
"""Other names of the keys every model needs, tried in this order."""

KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
"""Names of the number of KV heads, in vLLM's order (0.32, transformers_utils/model_arch_config_convertor.py)."""

LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Names of the longest context, in tokens; the smallest counts (same file)."""

UNSCALED_ROPE = frozenset(
    {"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope"}
)
"""Rope types whose `factor` is already in the positions (0.32, config/model.py, `_get_and_verify_max_len`)."""

FULL_EVERY: Mapping[str, int] = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gemma4_text": 6,
    "gpt_oss": 2,
    "cohere2": 4,
    "olmo3": 4,
    "exaone4": 4,
    "llama4_text": 4,
    "qwen3_next": 4,
    "qwen3_5_text": 4,
    "qwen3_5_moe_text": 4,
}
"""Length of a layer pattern: the last layer attends to everything, the others to a window, chunk or state."""

MLA = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
    }
)
"""Families whose attention vLLM keeps as one latent per token if `kv_lora_rank` is set (same file)."""

ENCODERS = frozenset(
    {
        "bert",
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
        "modernbert",
        "nomic_bert",
        "distilbert",
        "new",
        "gte",
        "electra",
        "mpnet",
        "deberta-v2",
        "clip",
        "siglip",
        "eurobert",
    }
)
"""Families that attend in both directions and cache nothing: they embed, classify or rank."""

PLAIN = frozenset(
    {
        "llama",
        "mistral",
        "ministral",
        "ministral3",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "gemma",
        "phi",
        "phi3",
        "phimoe",
        "gpt2",
        "gpt_neox",
        "gptj",
        "gpt_bigcode",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "stablelm",
        "starcoder2",
        "cohere",
        "olmo",
        "olmo2",
        "olmoe",
        "granite",
        "granitemoe",
        "smollm3",
        "glm",
        "glm4",
        "glm4_moe",
        "glm4v_text",
        "glm4v_moe_text",
        "chatglm",
        "internlm2",
        "baichuan",
        "exaone",
        "seed_oss",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "ernie4_5",
        "ernie4_5_moe",
        "minimax_m2",
        "apertus",
        "arcee",
        "nemotron",
        "dbrx",
        "solar",
    }
)
"""Decoders in which every layer keeps K and V of all tokens, or of one window."""
