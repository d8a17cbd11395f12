"""PURE. Signs of launch arguments that contradict each other, the model or the cards.

Texts: vLLM 0.32 (`config/`, `engine/arg_utils.py`, `platforms/cuda.py`) and argparse.
"""

from functools import partial

from engine.diagnosis.sign import Facts, Kind, Sign

_sign = partial(Sign, kind=Kind.ARGUMENT)


def _whole(facts: Facts) -> Facts:
    """The positions as a whole number. vLLM prints 8192.0."""
    return {"own": facts["own"].partition(".")[0]}


SIGNS = (
    _sign(
        "unknown argument",
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This vLLM does not know the argument {flags}.",
        "See `python -m vllm.entrypoints.openai.api_server --help` of this version.",
    ),
    _sign(
        "argument without value",
        r"error: argument (?P<flag>[^\s:]+): expected (?P<what>.+)",
        "The argument {flag} has no value: {what} expected.",
        "Give it one: {flag} VALUE.",
    ),
    _sign(
        "bad value of an argument",
        r"error: argument (?P<flag>\S+?): (?P<why>.+)",
        "The argument {flag} has a value that vLLM does not take: {why}.",
        "Correct it in the engine's arguments.",
    ),
    _sign(
        "ambiguous argument",
        r"error: ambiguous option: (?P<why>.+)",
        "An argument is ambiguous: {why}.",
        "Write its full name.",
    ),
    _sign(
        "sleep without a GPU",
        r"Sleep mode is not supported on current platform",
        "vLLM cannot sleep on this machine (--enable-sleep-mode).",
        "Leave out `idle: sleep` and --enable-sleep-mode: only an engine on GPUs sleeps.",
    ),
    _sign(
        "context over the model's own",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:max_position_embeddings|[\w.]+)=(?P<own>[\d.]+)",
        "--max-model-len {asked} is more than the {own} positions the model has.",
        "Ask for at most {own}.",
        derive=_whole,
    ),
    _sign(
        "batched tokens under sequences",
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
        "--max-num-batched-tokens {tokens} is below --max-num-seqs {seqs}.",
        "Give --max-num-batched-tokens {seqs} or more, or --max-num-seqs {tokens} or less.",
    ),
    _sign(
        "batched tokens under context",
        r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len \((?P<context>\d+)\)",
        "Without chunked prefill a prompt must fit into one batch: {tokens} tokens are less than the context of "
        "{context}.",
        "Give --enable-chunked-prefill, or --max-num-batched-tokens {context}.",
    ),
    _sign(
        "bfloat16 on an old GPU",
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<gpu>.+?) GPU",
        "The {gpu} cannot compute in bfloat16, which the model asks for.",
        "Give --dtype half.",
    ),
    _sign(
        "quantization of another kind",
        r"Quantization method specified in the model config \((?P<own>\w+)\) does not match.*?argument "
        r"\((?P<asked>\w+)\)",
        "--quantization {asked} was asked for, and the model's weights are {own}.",
        "Leave --quantization out: vLLM reads the method from the model.",
    ),
    _sign(
        "custom code not trusted",
        r"(?<!\S)(?P<model>\S++) contains custom code which must be executed",
        "The model {model} brings Python code of its own, and vLLM was not told to trust it.",
        "Read that code, then give --trust-remote-code.",
    ),
    _sign(
        "attention backend that cannot run",
        r"Selected backend (?P<backend>\S+) is not valid for this configuration\. Reason: (?P<why>.+)",
        "The attention backend {backend} that was asked for cannot run here: {why}",
        "Leave --attention-backend out: vLLM takes the best that can.",
    ),
    _sign(
        "no attention backend",
        r"No valid attention backend found for (?P<device>\S+)",
        "No attention backend of this vLLM can run the model on {device} with these arguments.",
        "Leave out --kv-cache-dtype and --block-size, or use a newer vLLM.",
    ),
)
