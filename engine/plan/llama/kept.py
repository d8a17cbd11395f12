"""PURE. The cache of each layer of a GGUF model, for a token and for a request, by its architecture.

From llama.cpp's sources, build 11549: `load_arch_hparams` of src/models, `llama_model::create_memory`,
`llama_hparams`. An architecture that is in no table here keeps keys and values of all tokens in each layer.
"""

from dataclasses import dataclass

from engine.plan.llama.said import Said


@dataclass(frozen=True, slots=True)
class _Windows:
    """Which layers of an architecture attend to a window of tokens only.

    Attributes:
        period: every so many layers one attends to all; the file may say another. 0: the file names each layer.
        first: whether the first of a period attends to all, and not the last.
        tokens: of the window, where the file does not say; 0 where a file without it has no windows.
        fixed: tokens of the window where there is one, whatever the file says; 0 for what it says.
        layers: the only number of layers with which there are windows; 0 for any.
    """

    period: int
    first: bool = False
    tokens: int = 0
    fixed: int = 0
    layers: int = 0


_WINDOWS = {
    "afmoe": _Windows(4),
    "cohere2": _Windows(4),
    "cohere2moe": _Windows(4, first=True),
    "exaone-moe": _Windows(4, tokens=128),
    "exaone4": _Windows(4, tokens=4096, layers=64),
    "gemma2": _Windows(2, tokens=4096),
    "gemma3": _Windows(6),
    "gemma3n": _Windows(5),
    "gemma4": _Windows(0),
    "gpt-oss": _Windows(2),
    "granite_swa": _Windows(0),
    "laguna": _Windows(4, first=True),
    "llama4": _Windows(4, tokens=8192, fixed=8192),
    "maple": _Windows(0),
    "mellum": _Windows(4),
    "mimo2": _Windows(0),
    "muse-glimmer": _Windows(4),
    "olmo2": _Windows(4),
    "plamo3": _Windows(8),
    "smallthinker": _Windows(4, first=True, fixed=4096),
    "spark2_5": _Windows(0),
    "step35": _Windows(0),
}
"""A file's `sliding_window` counts for these alone: llama.cpp attends to all tokens in any other, phi3 among them."""

_WINDOWED_ATTENTION = frozenset({"lfm2", "lfm2moe"})
"""Hybrids whose attention layers all have the window that the file names, if it names one."""

_STATES_ONLY = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_STATES_AND_CACHE = frozenset({"falcon-h1"})
_STATES_WITHOUT_KV_HEADS = frozenset(
    {"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"}
    | {"nemotron_h", "nemotron_h_moe"}
)
_STATES_BY_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""One layer of so many attends, unless the file says another number."""

_NO_CACHE = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"gemma-embedding", "wavtokenizer-dec", "dream", "llada", "llada-moe", "rnd1"}
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What one layer keeps.

    Attributes:
        keys: elements that it keeps of each token; 0 for none.
        values: likewise.
        window: whether it keeps those of a window of tokens only.
        state: bytes that it keeps of each slot, however long its request.
    """

    keys: int
    values: int
    window: bool
    state: int


def kept(said: Said, count: int, heads: tuple[int, ...]) -> list[Kept]:
    """Return what each layer keeps."""
    kv_heads = said.each("attention.head_count_kv", count) if said.has("attention.head_count_kv") else heads
    size = said.number("embedding_length") // heads[0] if heads[0] else 0
    full = (said.number("attention.key_length", size), said.number("attention.value_length", size))
    narrow = (said.number("attention.key_length_swa", full[0]), said.number("attention.value_length_swa", full[1]))
    latent = said.has("attention.key_length_mla")
    windowed = _windowed(said, count, kv_heads)
    cached, stated = _keeps(said, count, kv_heads)
    state = _state(said, max(heads))
    found = []
    for number in range(count):
        keys, values = narrow if windowed[number] else full
        heads_here = kv_heads[number] if cached[number] else 0
        found.append(
            Kept(
                keys * heads_here,
                0 if latent else values * heads_here,
                windowed[number] and heads_here > 0,
                state if stated[number] else 0,
            )
        )
    return found


def _keeps(said: Said, count: int, kv_heads: tuple[int, ...]) -> tuple[list[bool], list[bool]]:
    """Which layers keep keys and values, and which a state."""
    architecture = said.architecture
    if architecture in _NO_CACHE:
        return [False] * count, [False] * count
    if architecture in _STATES_ONLY:
        return [False] * count, [True] * count
    if architecture in _STATES_AND_CACHE:
        return [True] * count, [True] * count
    if architecture in _STATES_WITHOUT_KV_HEADS or architecture in _STATES_BY_INTERVAL:
        stated = _stated(said, count, kv_heads)
        if architecture.startswith("nemotron_h"):  # it has layers of neither kind: feed-forward alone
            bare = [width == 0 for width in said.each("feed_forward_length", count, 0)]
            return _both([not state for state in stated], bare), _both(stated, bare)
        return [not state for state in stated], stated
    own = count  # later layers attend to what earlier ones keep
    if architecture == "gemma3n":
        own = 20
    elif architecture == "gemma4":
        own = count - said.number("attention.shared_kv_layers", 0)
    return [number < own for number in range(count)], [False] * count


def _stated(said: Said, count: int, kv_heads: tuple[int, ...]) -> list[bool]:
    """Which layers of a hybrid keep a state."""
    if said.architecture in _STATES_WITHOUT_KV_HEADS:
        return [heads == 0 for heads in kv_heads]
    if said.has("attention.recurrent_layers"):
        return [bool(one) for one in said.each("attention.recurrent_layers", count)]
    interval = max(1, said.number("full_attention_interval", _STATES_BY_INTERVAL[said.architecture]))
    return [(number + 1) % interval != 0 for number in range(count)]


def _both(one: list[bool], other: list[bool]) -> list[bool]:
    return [first and second for first, second in zip(one, other, strict=True)]


def _state(said: Said, heads: int) -> int:
    """Bytes of a layer's state for one slot: 32-bit floats (`llama_hparams::n_embd_r`, `n_embd_s`)."""
    hidden = said.number("embedding_length")
    if wkv := said.number("wkv.head_size", 0):
        return 4 * hidden * (said.number("token_shift_count", 2) + wkv)
    if taps := said.number("shortconv.l_cache", 0):
        return 4 * hidden * (taps - 1)
    kernel = said.number("ssm.conv_kernel", 0)
    if delta := said.number("kda.head_dim", 0):
        return 4 * heads * delta * (3 * (kernel - 1 if kernel else 3) + delta)
    if said.architecture == "minimax-01":
        size = said.number("attention.key_length", hidden // heads if heads else 0)
        return 4 * size * size * heads
    inner, width = said.number("ssm.inner_size", 0), said.number("ssm.state_size", 0)
    taps = max(0, kernel - 1)
    return 4 * (taps * (inner + 2 * said.number("ssm.group_count", 0) * width) + width * inner)


def window(said: Said, count: int) -> int:
    """Tokens of the window; 0 without one."""
    if said.architecture in _WINDOWED_ATTENTION:
        return said.number("attention.sliding_window", 0)
    rule = _WINDOWS.get(said.architecture)
    if rule is None or (rule.layers and rule.layers != count):
        return 0
    told = said.number("attention.sliding_window", rule.tokens)
    return rule.fixed if rule.fixed and told else told


def _windowed(said: Said, count: int, kv_heads: tuple[int, ...]) -> list[bool]:
    if not window(said, count):
        return [False] * count
    if said.architecture in _WINDOWED_ATTENTION:
        return [heads > 0 for heads in kv_heads]
    rule = _WINDOWS[said.architecture]
    pattern = said.metadata.get(f"{said.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return [bool(one) for one in said.each("attention.sliding_window_pattern", count)]
    period = said.number("attention.sliding_window_pattern", rule.period)
    whole = 0 if rule.first else period - 1
    return [period == 0 or number % period != whole for number in range(count)]
