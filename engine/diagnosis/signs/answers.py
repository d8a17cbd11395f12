"""PURE. Signs of an answer that is no language: the look of tokens from the wrong model, and of NaN.

Every line is searched for them, since a client prints an answer bare, as JSON or as an object. Shapes: issues 13035 and
22881 of vllm-project/vllm, and chat templates' own markers.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.TOKENIZER, weight=Weight.HINT, permanent=False)

SIGNS = (
    _sign(
        "markers of a chat template in an answer",
        r"(?P<token><\|(?!\w{0,20}(?:pad|image|video|audio|vision|endoftext))[a-z]\w{1,40}\|>|"
        r"<(?:start|end)_of_turn>|\[/?INST\]|<\uff5c[^\uff5c\s]{1,40}\uff5c>)(?:\s|\\n){0,2}(?P=token)",
        "A text has {token} over and over: the model or the tokenizer does not know it as what stands between turns.",
        "Tokenizer or chat template are of another model, or a base model is asked to chat: leave --tokenizer and "
        "--chat-template out, or take the instruct version. `kvgate doctor MODEL` compares tokenizer, template and "
        "weights.",
        example="<|im_start|><|im_start|>",
    ),
    _sign(
        "answer of exclamation marks",
        r"!{16}(?:\s|\\n)*(?:[\"'\\]|$)",
        "An answer is exclamation marks: the model computed NaN, and token 0 of its vocabulary is an exclamation mark.",
        "Where the model was trained in bfloat16 give --dtype bfloat16 in place of float16; else try --enforce-eager, "
        "another --attention-backend, and weights without quantization, one at a time.",
        example="!!!!!!!!!!!!!!!!",
    ),
    _sign(
        "answer of one word over and over",
        r"\b(?P<word>[^\W\d_A-Z]{1,24}+)(?: (?P=word)){11}\b",
        "An answer is one word over and over: {word}.",
        "Tokenizer and weights may be of two models: `kvgate doctor MODEL` compares them. If they go together, the "
        "weights are damaged or quantized too hard, or sampling is at fault: leave temperature and repetition_penalty "
        "as the model's generation_config.json has them.",
        example="the the the the",
    ),
)
