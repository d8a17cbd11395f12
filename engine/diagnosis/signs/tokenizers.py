"""PURE. Signs of a tokenizer or a chat template that does not match the model.

Texts: vLLM 0.32 (`tokenizers/`, `renderers/`), transformers 4.44 to 5.19, torch's assertions.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.TOKENIZER)

SIGNS = (
    _sign(
        "tokenizer class unknown",
        r"Tokenizer class (?P<name>\w+) does not exist or is not currently imported",
        "The tokenizer is of the class {name}, which the engine's transformers does not have.",
        "Use a newer vLLM, give --trust-remote-code where the model brings the class, or --tokenizer.",
    ),
    _sign(
        "tokenizer file damaged",
        r"(?:JSONDecodeError|UnicodeDecodeError): (?P<why>.+)",
        "A file of the model's tokenizer is damaged or was not loaded whole ({why}).",
        "Load tokenizer.json and tokenizer_config.json again, or give --tokenizer.",
        within=r"tokeniz",
    ),
    _sign(
        "tokenizer not understood",
        r"data did not match any variant of untagged enum|Exception: (?:EOF|expected|invalid type|missing field).* at "
        r"line \d+ column \d+|error parsing tokenizer",
        "The model's tokenizer.json is damaged, or newer than the engine's `tokenizers`.",
        "Load the file again; if it is whole, use a newer vLLM.",
    ),
    _sign(
        "tokenizer not loaded",
        r"Failed to load the tokenizer\.|Can't load tokenizer for|Unable to load vocabulary from file",
        "The model's tokenizer cannot be loaded.",
        "Check that its tokenizer files are there and whole, or give --tokenizer. `kvgate doctor MODEL` tries them.",
        weight=Weight.EFFECT,
    ),
    _sign(
        "chat template not found",
        r"supplied chat template(?: string)? \((?P<path>[^)]*)\)",
        "The chat template {path} cannot be opened.",
        "Correct --chat-template: a file as the engine sees it.",
    ),
    _sign(
        "no chat template",
        r"default chat template is no longer allowed|Cannot use (?:apply_chat_template|chat template functions)",
        "The model has no chat template, so that chat requests are refused with 400.",
        "Give --chat-template FILE, or use the instruct version of the model; /v1/completions works without one.",
        weight=Weight.HINT,
    ),
    _sign(
        "chat template of another model",
        r"jinja2\.exceptions\.(?P<error>TemplateSyntaxError|UndefinedError|TemplateAssertionError): (?P<why>.+)",
        "The chat template cannot be rendered: {why}.",
        "It was written for another model or engine: give --chat-template FILE with the model's own.",
        weight=Weight.HINT,
    ),
    _sign(
        "roles the template refuses",
        r"TemplateError: (?P<why>.*[Rr]oles? .*)",
        "The chat template refuses a conversation: {why}",
        "Send the roles as the template wants them, or give --chat-template with one that takes them.",
        weight=Weight.HINT,
    ),
    _sign(
        "token beyond the vocabulary",
        r"Token id (?P<id>-?\d+) is out of vocabulary",
        "Token {id} is beyond the model's vocabulary: tokenizer and model do not go together.",
        "Take both from one model: leave --tokenizer out. `kvgate doctor MODEL` shows classes and ids.",
        weight=Weight.HINT,
    ),
    _sign(
        "token beyond the embedding",
        r"(?:srcIndex < srcSelectDimSize|vectorized_gather_kernel.*index out of bounds|"
        r"index out of range in self|indexSelectLargeIndex)",
        "A token id is beyond the rows of the embedding: the tokenizer has more tokens than the model.",
        "Take tokenizer and weights from one model. `kvgate doctor MODEL` shows classes, ids and rows.",
    ),
)
