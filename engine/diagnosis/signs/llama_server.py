"""PURE. Signs of a llama-server that does not start, or fails at work.

Texts: llama.cpp of November 2026 (`common/arg.cpp`, `ggml/src/gguf.cpp`, `src/llama-model-loader.cpp`,
`src/llama-context.cpp`, `tools/server/`), of its program and of the package xllamacpp.
"""

from functools import partial

from engine.diagnosis.sign import Facts, Kind, Sign, Weight

_argument = partial(Sign, kind=Kind.ARGUMENT)
_model = partial(Sign, kind=Kind.MODEL)
_memory = partial(Sign, kind=Kind.MEMORY)

_AGAIN = "Download it again, and compare its size or checksum with the source's."
_NEWER = "Take a newer llama.cpp."
_CONVERT = "Take another conversion of the model, or convert it again with the llama.cpp that is to run it."
_LESS = (
    "Give a smaller --ctx-size, or half as much for each token with --cache-type-k q8_0 --cache-type-v q8_0; on cards "
    "also fewer layers with --gpu-layers."
)


def _why(facts: Facts) -> Facts:
    """C++ names only the function that read a number."""
    return {"reason": "a number is expected" if facts["why"] in {"stoi", "stof", "stol", "stoull"} else facts["why"]}


def _shapes(facts: Facts) -> Facts:
    """Both shapes, without the ones that llama.cpp fills in."""
    return {name: _shape(facts[name]) for name in ("expected", "found")}


def _shape(said: str) -> str:
    sizes = [size.strip() for size in said.split(",")]
    while len(sizes) > 1 and sizes[-1] == "1":
        sizes.pop()
    return " x ".join(sizes)


SIGNS = (
    _argument(
        "unknown argument of llama-server",
        r"^error: invalid argument: (?P<flag>.+)",
        "This llama-server does not know the argument {flag}.",
        "See `llama-server --help` of this version. The package xllamacpp takes only some of the program's arguments.",
    ),
    _argument(
        "no such device of llama-server",
        r'^error while handling argument "(?P<flag>[^"]+)": invalid device: (?P<device>.+)',
        "This llama-server has no device {device} ({flag}).",
        "`llama-server --list-devices` names those it has; a build for processors has none.",
    ),
    _argument(
        "bad value of an argument of llama-server",
        r'^error while handling argument "(?P<flag>[^"]+)": (?P<why>.+)',
        "The argument {flag} has a value that llama-server does not take: {reason}.",
        "Correct it in the engine's arguments.",
        derive=_why,
    ),
    _argument(
        "chat template of llama-server",
        r"^error: the supplied chat template is not supported: ",
        "llama-server cannot use the chat template that it was given.",
        "Correct the template, or leave it out: a GGUF file brings its model's own.",
    ),
    _argument(
        "quantized values without flash attention",
        r"quantized V cache requires flash_attn to be enabled|V cache quantization requires flash_attn",
        "--cache-type-v asks for a quantized cache, which needs flash attention, and that is off.",
        "Leave out --flash-attn off, or give --cache-type-v f16.",
    ),
    _argument(
        "LoRA of llama-server",
        r"failed to apply lora adapter: (?P<why>.+)",
        "llama-server cannot use a LoRA adapter: {why}.",
        "Correct --lora: it takes a GGUF file that was made for this base model.",
        weight=Weight.EFFECT,
    ),
    _model(
        "GGUF file not opened",
        r"failed to open GGUF file '(?P<file>[^']+)' \((?P<why>[^)]+)\)",
        "The file {file} cannot be opened: {why}.",
        "Correct the path, or the file's rights.",
    ),
    _model(
        "no GGUF file",
        r"invalid magic characters: '(?P<magic>[^']*)', expected 'GGUF'",
        "The model's file is no GGUF file: it begins with '{magic}'.",
        "Download it again (in a folder from git: `git lfs pull`), or convert the model to GGUF.",
    ),
    _model(
        "GGUF version",
        r"GGUF(?P<old>v1) is no longer supported|this GGUF file is version (?P<new>\d+) but ",
        "The model's file is of GGUF version {old}{new}, which this llama-server does not read.",
        "Take a newer llama.cpp for a newer version, and another conversion of the model for version 1.",
    ),
    _model(
        "GGUF block type unknown",
        r"tensor '(?P<tensor>[^']+)' has invalid ggml type (?P<type>\d+)",
        "The model is quantized in a way that this llama-server does not know (type {type}).",
        f"{_NEWER} Some forks have types of their own.",
    ),
    _model(
        "GGUF file cut short",
        r"tensor '(?P<tensor>[^']+)' data is not within the file bounds",
        "The model's file is not whole: it ends before the data of {tensor}.",
        _AGAIN,
    ),
    _model(
        "GGUF file damaged",
        r"gguf_init_from_\w+: failed to read (?P<what>[\w -]+)|tensor '\S+' has offset \d+, expected \d+",
        "The model's file is damaged, or was cut short in its header.",
        _AGAIN,
    ),
    _model(
        "GGUF architecture unknown",
        r"unknown model architecture: '(?P<architecture>[^']+)'",
        "This llama-server does not know the architecture {architecture}.",
        f"{_NEWER} A model of a new architecture needs one that was built after its support was added.",
    ),
    _model(
        "GGUF projector as a model",
        r"CLIP cannot be used as main model",
        "The file is a projector for images (mmproj), no model.",
        "Name the model's own GGUF file, and give the projector with --mmproj.",
    ),
    _model(
        "mmproj not loaded",
        r"Failed to load CLIP model from (?P<file>\S+)",
        "The projector {file} (--mmproj) cannot be loaded.",
        "Take the mmproj file that belongs to this model.",
        weight=Weight.EFFECT,
    ),
    _model(
        "GGUF key missing",
        r"key not found in model: (?P<key>\S+)",
        "The model's file does not say {key}, which its architecture needs.",
        _CONVERT,
    ),
    _model(
        "GGUF pre-tokenizer unknown",
        r"unknown pre-tokenizer type: '(?P<name>[^']+)'",
        "This llama-server does not know the pre-tokenizer {name} of the model.",
        f"{_NEWER} Or take another conversion of the model.",
    ),
    _model(
        "GGUF tensor missing",
        r"tensor '(?P<tensor>[^']+)' not found|missing tensor '(?P<other>[^']+)'",
        "The model's file has no tensor {tensor}{other}, which its architecture needs.",
        _CONVERT,
    ),
    _model(
        "GGUF tensor of another shape",
        r"tensor '(?P<tensor>[^']+)' has wrong shape; expected +(?P<expected>[\d, ]+), got +(?P<found>[\d, ]+)",
        "The tensor {tensor} has the shape {found}, and the rest of the file makes it {expected}.",
        _CONVERT,
        derive=_shapes,
    ),
    _model(
        "GGUF parameters contradict",
        r"error loading model hyperparameters: (?P<why>.+)",
        "The model's parameters in its file contradict each other: {why}.",
        _CONVERT,
        weight=Weight.EFFECT,
    ),
    _model(
        "GGUF file not loaded",
        r"error loading model: (?P<why>.+)",
        "The model cannot be loaded: {why}.",
        "Check that the file is whole, and that this llama.cpp is as new as the model.",
        weight=Weight.TAIL,
    ),
    _memory(
        "host memory under llama-server",
        r"insufficient memory \(attempted to allocate +(?P<asked>[\d.]+ [KMG]B)\)",
        "This machine does not give llama-server {asked} at once.",
        _LESS,
    ),
    _memory(
        "card memory under llama-server",
        r"allocating (?P<asked>[\d.]+ MiB) on device (?P<device>\d+): \w+ failed: out of memory|"
        r"Device memory allocation of size (?P<size>\d+) failed",
        "A card has no room for a buffer of llama-server ({asked}{size}).",
        f"{_LESS} --gpu-layers auto puts on the cards what fits.",
    ),
    _memory(
        "KV cache of llama-server",
        r"failed to allocate buffer for kv cache",
        "There is no room for the KV cache.",
        _LESS,
        weight=Weight.EFFECT,
    ),
    Sign(
        "port of llama-server taken",
        r"couldn't bind HTTP server socket, hostname: (?P<host>\S+), port: (?P<port>\d+)",
        "llama-server cannot listen on {host}:{port}: most often another process does.",
        "Free the port (`ss -ltnp` shows who listens); without a fixed one, kvgate takes a free port.",
        kind=Kind.NETWORK,
    ),
    Sign(
        "check of llama.cpp failed",
        r"(?<![\w.-])(?P<file>[\w.-]++):(?P<line>\d+): GGML_ASSERT\((?P<what>.+)\) failed",
        "A check of llama.cpp's own failed ({file}, line {line}): {what}.",
        "It is a fault of this build, or a damaged model: take a newer llama.cpp, and check the file.",
        kind=Kind.DEATH,
        weight=Weight.EFFECT,
        permanent=False,
    ),
    Sign(
        "requests killed for KV cache",
        r"Context size has been exceeded",
        "The KV cache was full, and llama-server failed every request that ran.",
        "Send requests through kvgate only, and tell it with `kv_tokens` where the cache is split; or give a larger "
        "--ctx-size.",
        kind=Kind.SERVICE,
        weight=Weight.HINT,
    ),
)
