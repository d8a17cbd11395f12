"""PURE. Why an engine failed: its log and exit code -> cause -> remedy.

vLLM ends every failed start with the same two lines, "Engine core initialization failed. See root cause above." and
a traceback of the process that waited. The cause is the first real error, many lines earlier.
"""

import re
import signal
from collections.abc import Sequence

from engine.diagnosis.sign import Diagnosis, Kind, Sign
from engine.loglines import parse

_MORE_KV = (
    "Lower --max-model-len, or give the KV cache more memory: a higher --gpu-memory-utilization, on a CPU a higher "
    "VLLM_CPU_KVCACHE_SPACE (GiB)."
)

# The more telling sign first: one failure often shows several of them.
SIGNS: tuple[Sign, ...] = (
    Sign(
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This vLLM does not know the argument {flags}.",
        "See `python -m vllm.entrypoints.openai.api_server --help` of this version.",
    ),
    Sign(
        r"error: argument (?P<flag>\S+?): (?P<why>.+)",
        "The argument {flag} has a value that vLLM does not take: {why}.",
        "Correct it in the engine's arguments.",
    ),
    Sign(r"error: ambiguous option: (?P<why>.+)", "An argument is ambiguous: {why}.", "Write its full name."),
    Sign(
        r"\[Errno 98\] .*[Aa]ddress already in use",
        "The engine's port is taken by another process.",
        "Free the port (`ss -ltnp` shows who listens); without a fixed one, kvgate takes a free port.",
    ),
    Sign(
        r"You are trying to access a gated repo|Cannot access gated repo for url (?P<url>\S+)",
        "The model is gated on the hub, and no token that may read it was given.",
        "Accept its licence on the hub, and set HF_TOKEN.",
    ),
    Sign(
        r"401 Client Error|Invalid credentials",
        "The hub refused the token.",
        "Set HF_TOKEN to a valid one.",
    ),
    Sign(
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "There is no model in {model}: no config.json or params.json.",
        "Name a folder that holds a model, or a hub id.",
    ),
    Sign(
        r"HFValidationError: Repo id must .*?: '(?P<model>[^']*)'",
        "The model folder {model} does not exist.",
        "Correct the path.",
    ),
    Sign(
        r"Repository Not Found for url: (?P<url>\S+)|(?P<model>\S+) is not a local folder and is not a valid model",
        "The hub has no such model, or it is private.",
        "Check its name; for a private one set HF_TOKEN.",
    ),
    Sign(
        r"We couldn't connect to '(?P<hub>[^']*)'",
        "The model is not on this machine, and {hub} cannot be reached.",
        "Give a local folder, connect the machine, or set HF_ENDPOINT to a mirror.",
        permanent=False,
    ),
    Sign(
        r"LocalEntryNotFoundError: .*outgoing traffic has been disabled",
        "The model is not in the local hub cache, and HF_HUB_OFFLINE forbids to download it.",
        "Unset HF_HUB_OFFLINE, or give a local folder.",
    ),
    Sign(
        r"Cannot find any model weights with (?P<model>\S+)",
        "The model folder holds no weights.",
        "Complete the download of the model (*.safetensors).",
    ),
    Sign(
        r"Model architectures (?P<names>\[.*?\]) are not supported",
        "This vLLM cannot run the architecture {names}.",
        "Use a newer vLLM, or another model.",
    ),
    Sign(
        r"Failed to load the tokenizer\.",
        "The model's tokenizer cannot be loaded.",
        "Check that its tokenizer files are there, or give --tokenizer.",
    ),
    Sign(
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:max_position_embeddings|[\w.]+)=(?P<own>\d+)",
        "--max-model-len {asked} is more than the {own} positions the model has.",
        "Ask for at most {own}.",
    ),
    Sign(
        r"max seq len \((?P<asked>\d+)\).*?\((?P<needed>[\d.]+) GiB KV cache is needed.*?"
        r"available KV cache memory \((?P<there>[\d.]+) GiB\)(?:.*?estimated maximum model length is (?P<fits>\d+))?",
        "One request of {asked} tokens does not fit: it needs {needed} GiB of KV cache, and {there} GiB are there.",
        _MORE_KV,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"No available memory for the cache blocks",
        "Nothing is left for the KV cache after the weights and the work space.",
        _MORE_KV,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"Free memory on device (?P<device>\S* ?)\(.*?less than desired GPU memory utilization",
        "The GPU has less free memory than vLLM was told to use: another process holds the rest.",
        "Stop what else runs on the GPU, or lower --gpu-memory-utilization.",
        permanent=False,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"Available memory on node (?P<node>\d+) \((?P<free>[\d.]+)/.*?less than (?:desired|requested)",
        "The machine has less free memory than the KV cache was told to take.",
        "Lower VLLM_CPU_KVCACHE_SPACE (GiB), or stop what else uses memory.",
        permanent=False,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"CUDA out of memory occurred when warming up sampler with (?P<requests>\d+) dummy",
        "The GPU ran out of memory while warming up with many sequences.",
        "Lower --max-num-seqs or --gpu-memory-utilization.",
        kind=Kind.MEMORY,
    ),
    Sign(
        r"(?P<loading>Failed to load model) - not enough GPU memory",
        "The GPU's memory cannot hold the weights.",
        "Use a smaller or a quantized model, more GPUs (--tensor-parallel-size), or stop what else runs on it.",
        permanent=False,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"OutOfMemoryError: CUDA out of memory",
        "The GPU's memory does not suffice.",
        "Lower --gpu-memory-utilization or --max-num-seqs, or use a smaller model or more GPUs.",
        permanent=False,
        kind=Kind.MEMORY,
    ),
    Sign(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
        "--max-num-batched-tokens {tokens} is below --max-num-seqs {seqs}.",
        "Raise the first or lower the second.",
    ),
    Sign(
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)",
        "The model's {heads} attention heads cannot be split over {size} GPUs.",
        "Choose a --tensor-parallel-size that divides {heads}.",
    ),
    Sign(
        r"World size \((?P<asked>\d+)\) is larger than the number of available GPUs \((?P<there>\d+)\)",
        "{asked} GPUs were asked for, and the engine sees {there}.",
        "Lower --tensor-parallel-size, or give the engine more GPUs.",
    ),
    Sign(
        r"InvalidCxxCompiler|No working C\+\+ compiler found",
        "vLLM compiles the model here, and there is no C++ compiler.",
        "Install one (apt-get install g++), or give --enforce-eager.",
    ),
    Sign(
        r"No module named '?vllm\b",
        "The interpreter has no vLLM.",
        "Name one that has it, or let kvgate set up its own.",
    ),
)

# Only where nothing in the log says more.
LAST_SIGNS: tuple[Sign, ...] = (
    Sign(
        r"EngineDeadError|died unexpectedly|exited unexpectedly",
        "One of the engine's own processes died without a word.",
        "Most often the machine ran out of memory: `dmesg` names what was killed.",
        permanent=False,
    ),
)

_ERROR = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?:: |$)|^Value error, |^\S+: error: |^Fatal "
)
_GENERIC = re.compile(
    r"\d+ validation errors? for |See root cause above|EngineCore failed to start|WorkerProc failed to start"
    r"|WorkerProc initialization failed|EngineCore encountered |EngineDeadError|died unexpectedly|exited unexpectedly"
)
_SIGNALS = {
    signal.SIGKILL: Diagnosis(
        "It was killed (SIGKILL).", "Most often the machine ran out of memory: `dmesg` names what was killed."
    ),
    signal.SIGILL: Diagnosis(
        "The processor does not know an instruction this build uses (SIGILL).",
        "vLLM's build for x86-64 needs AVX2.",
        permanent=True,
    ),
}


def diagnose(log: Sequence[str], code: int) -> Diagnosis:
    """Say why a program ended that was not asked to.

    Args:
        log: What it printed, oldest line first.
        code: Its exit code; negative for the signal that killed it.
    """
    lines = [_plain(line.text) for line in map(parse, log) if line.level not in {"DEBUG", "INFO", "WARNING"}]
    if found := _match(SIGNS, lines):
        return found
    if code < 0:
        number = signal.Signals(-code)
        return _SIGNALS.get(number, Diagnosis(f"It was ended by {number.name}."))
    for line in lines:
        if _ERROR.search(line) and not _GENERIC.search(line):
            return Diagnosis(f"It ended with exit code {code}: {line}")
    last = next((line for line in reversed(lines) if line), "")
    return _match(LAST_SIGNS, lines) or Diagnosis(f"It ended with exit code {code}.", evidence=last)


def _match(signs: Sequence[Sign], lines: Sequence[str]) -> Diagnosis | None:
    for sign in signs:
        for line in lines:
            if match := re.search(sign.pattern, line):
                return sign.read(match.groupdict(""), line)
    return None


def _plain(text: str) -> str:
    """The text without what pydantic adds to it: the values of half the configuration."""
    return text.partition(" [type=")[0].strip()
