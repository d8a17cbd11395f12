"""PURE. Signs in the log of a running engine: it is slower than it could be, or refuses requests.

Texts: vLLM 0.32 (`platforms/cuda.py`, `renderers/params.py`) and the older forms of them: `Using XFormers backend`
until 0.10, the context error of 0.8 to 0.31.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.SERVICE, weight=Weight.HINT, permanent=False)

_FASTER = (
    "On Ampere and later leave --attention-backend, --kv-cache-dtype and --dtype out for one start and compare; on "
    "older cards there is no faster one."
)

SIGNS = (
    _sign(
        "context length exceeded",
        r"maximum context length (?:is |\()(?P<own>\d+)|longer than the maximum model length of (?P<old_own>\d+)",
        "Requests were refused: their prompt, or prompt and max_tokens, is over the context of {own}{old_own} tokens.",
        "Send less, or raise --max-model-len as far as the model and the KV cache go (`kvgate plan MODEL`).",
    ),
    _sign(
        "block size keeps a faster backend out",
        r"--block-size (?P<size>\d+) precluded higher-priority backend\(s\) (?P<better>.+?)\. Using (?P<backend>\w+)",
        "--block-size {size} rules {better} out, and {backend} is slower.",
        "Leave --block-size out.",
    ),
    _sign(
        "FlashAttention ruled out",
        r"Cannot use FlashAttention(?:-\d)? backend (?:because|for|due to) ?(?P<why>.+)",
        "FlashAttention cannot be used ({why}), and a slower attention was taken silently.",
        _FASTER,
    ),
    _sign(
        "slow attention backend",
        r"Using (?P<backend>XFormers|Torch SDPA|TORCH_SDPA|FLEX_ATTENTION|FlexAttention|Flex) (?:attention )?backend",
        "The attention backend {backend} was taken silently: it is slower than FlashAttention.",
        _FASTER,
    ),
    _sign(
        "FlashAttention not among the backends",
        r"Using (?P<backend>\w+) attention backend out of potential backends: \[(?![^\]]*FLASH)[^\]]*\]",
        "The attention backend {backend} was taken silently: FlashAttention and FlashInfer cannot run this.",
        _FASTER,
    ),
    _sign(
        "slow tokenizer",
        r"Using a slow tokenizer\. This might cause a significant slowdown",
        "The tokenizer is one in Python, which holds up every request.",
        "Convert it once (`AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`), and give --tokenizer "
        "FOLDER.",
    ),
    _sign(
        "preempted, as older vLLM says",
        r"is preempted by PreemptionMode\.(?P<mode>\w+) mode because there is not enough KV cache space",
        "Requests were thrown out of the KV cache and computed again.",
        "Let kvgate admit them, or lower --max-num-seqs.",
    ),
    _sign(
        "engine on demand does not start",
        r"engine(?: of this model)? does not start\b",
        "kvgate could not start an engine that a request waited for, and refused the request.",
        "The reason is beside that line of kvgate's log. If it does not do, give `kvgate doctor` the engine's own log, "
        "and see that nothing else holds the memory of its group's GPUs (`nvidia-smi`).",
    ),
)
