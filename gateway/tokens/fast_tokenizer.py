"""A model's fast tokenizer, loaded from its files with `tokenizers` alone, where transformers would load the same.

transformers takes a second of CPU and 40 MB to import. For most models it loads `tokenizer.json`, or builds what that
file says from the file's vocabulary, and adds what `tokenizer_config.json` has besides. Here a tokenizer is loaded if
both files agree, so that nothing is added. Everything else is left to transformers: files that differ, other kinds of
files, other classes of tokenizers, code of their own. `tests/unit/tokens/test_fast_tokenizer.py` holds the tables
below to the installed transformers.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gateway.tokens.messages import Json
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Tokens, backend_encoded, plain

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

_GENERIC = frozenset({"PreTrainedTokenizer", "TokenizersBackend"})
"""Classes that take `tokenizer.json` as it is."""

AS_FILED = frozenset(
    {
        "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v",
        "glm4v_moe", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "kimi_linear", "mimo_v2_flash",
        "minimax_m2", "mistral", "mistral3", "mixtral", "nemotron", "olmo2", "olmo3", "phi3", "phimoe",
    }
)  # fmt: skip
"""Models for which transformers takes `tokenizer.json` as it is, whatever class their files name."""

CLASSES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (
            "qwen2",
            "qwen2_5_vl",
            "qwen2_moe",
            "qwen2_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "qwen3_vl_moe",
        ),
        "Qwen2Tokenizer",
    )
    | dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp"), "Qwen3_5Tokenizer")
    | dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), "GemmaTokenizer")
    | {"hyperclovax_vision_v2": "GPT2Tokenizer"}
)
"""Models that transformers has a class for, among those of which it has one that is used here."""

OVERRIDING = frozenset({"hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"})
"""Models whose class transformers uses whatever class their files name."""

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_KNOWN = frozenset(
    {
        *_NAMED, "add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder",
        "additional_special_tokens", "backend", "chat_template", "clean_up_tokenization_spaces", "errors",
        "extra_special_tokens", "is_local", "legacy", "local_files_only", "max_length", "model_input_names",
        "model_max_length", "name_or_path", "padding_side", "processor_class", "sp_model_kwargs",
        "spaces_between_special_tokens", "split_special_tokens", "tokenizer_class", "truncation_side",
        "use_default_system_prompt",
    }
)  # fmt: skip
"""Keys of `tokenizer_config.json` that are read here or change no encoding, besides those that name tokens."""


class UnlikeError(Exception):
    """transformers must load this tokenizer; the message says why."""


class FastTokenizer:
    """Implements `gateway.tokens.tokenizer.Tokenizer`.

    Args:
        folder: of the model.

    Raises:
        UnlikeError: transformers may load something else from it.
    """

    def __init__(self, folder: Path) -> None:
        config = _object(folder / "tokenizer_config.json")
        kind = _class(_object(folder / "config.json").get("model_type"), config)
        _check_config(folder, config)
        backend = _backend(folder)
        tokens = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        named, extra = _special_tokens(config, kind)
        special = {*named.values(), *extra}
        if missing := special - tokens.keys():
            raise UnlikeError(f"tokenizer.json lacks {min(missing)!r}")
        _check_added(backend, config.get("added_tokens_decoder"), special, kind)
        if backend.padding is not None and "pad_token" not in config:
            raise UnlikeError("tokenizer.json names a padding token of its own")
        if kind is not None:
            _check_built(backend, _BUILT[kind](config))
        plain(backend, split_special_tokens=False)
        self.compiled = True
        self.longest = max(map(len, backend.get_vocab()))
        self.special_tokens = (*named.values(), *extra)
        self.backend = backend
        self._named = named
        self._templates = _templates(folder, config)

    def encode(self, text: str, *, special: bool) -> Tokens:
        """See `Tokenizer.encode`."""
        return backend_encoded(self.backend, text, special=special)

    def template(self, given: str | None, *, tools: bool) -> str | None:
        """See `Tokenizer.template`."""
        own = self._templates
        if isinstance(own, str):
            return own if given is None else given
        if given is not None:
            return own.get(given, given)
        return own["tool_use"] if tools and "tool_use" in own else own.get("default")

    def render(
        self, template: ChatTemplate, messages: list[Json], tools: list[Json] | None, variables: Mapping[str, Any]
    ) -> str:
        """See `Tokenizer.render`."""
        given = self._named | dict(variables)
        continued = given.pop("continue_final_message", False)
        return template.render(messages, tools, given, continued=continued)


def _object(path: Path) -> Json:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise UnlikeError(f"there is no {path.name} that can be read") from None
    if not isinstance(found, dict):
        raise UnlikeError(f"{path.name} is not an object")
    return found


def _class(model_type: Any, config: Json) -> str | None:
    """The class that transformers chooses, if it builds its tokenizer anew; None if it takes the file's."""
    named = config.get("tokenizer_class")
    if not isinstance(named, str) or not isinstance(model_type, str):
        raise UnlikeError("no class or model type is named")
    named = named.removesuffix("Fast")
    own = CLASSES.get(model_type)
    if model_type in AS_FILED or (own is None and named in _GENERIC):
        return None
    if own is not None and (named == own or model_type in OVERRIDING):
        if own in _BUILT:
            return own
    elif own is not None and named in _GENERIC:
        return None
    raise UnlikeError(f"{named} of a {model_type} is not known here")


def _check_config(folder: Path, config: Json) -> None:
    """Check what is said to transformers beside the tokenizer."""
    told = {key for key, value in config.items() if value is not None}
    unknown = {key for key in told - _KNOWN if not (key.endswith("_token") and isinstance(config[key], str))}
    if unknown:
        raise UnlikeError(f"tokenizer_config.json has {min(unknown)}")
    if config.get("backend", "tokenizers") != "tokenizers" or config.get("split_special_tokens", False) is not False:
        raise UnlikeError("tokenizer_config.json asks for another kind of tokenizer")
    others = ["tekken.json"]
    if "added_tokens_decoder" not in config:  # else these are not read
        others += ["added_tokens.json", "special_tokens_map.json"]
    if found := [name for name in others if (folder / name).exists()]:
        raise UnlikeError(f"there is a {found[0]}")


def _backend(folder: Path) -> "Backend":
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415  # not needed where the engine counts

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnlikeError("there is no tokenizer.json")
    try:
        return Backend.from_file(str(path))
    except Exception:  # noqa: BLE001  # it has no class of its own
        raise UnlikeError("tokenizer.json cannot be read") from None


def _special_tokens(config: Json, kind: str | None) -> tuple[dict[str, str], list[str]]:
    """The special tokens with a name, and those without."""
    named = {name: _content(value) for name, value in config.items() if name.endswith("_token") and _names_one(value)}
    defaults = _DEFAULTS.get(kind or "", {})
    named |= {name: token for name, token in defaults.items() if name not in config}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict) and not config.get("additional_special_tokens"):
        return named | {name: _content(token) for name, token in extra.items()}, []
    if not isinstance(extra, list):
        raise UnlikeError("extra_special_tokens has another form")
    return named, [_content(token) for token in extra]


def _names_one(value: Any) -> bool:
    return value is not None and not isinstance(value, bool)


def _content(token: Any) -> str:
    if isinstance(token, str):
        return token
    if isinstance(token, dict) and token.get("__type") == "AddedToken" and isinstance(token.get("content"), str):
        return str(token["content"])
    raise UnlikeError("tokenizer_config.json names a token in another form")


def _check_added(backend: "Backend", configured: Any, special: set[str], kind: str | None) -> None:
    """Check that transformers would add no token, and give each the same id and the same properties."""
    from tokenizers import AddedToken  # noqa: PLC0415  # as above

    filed = backend.get_added_tokens_decoder()
    if configured is not None:
        try:
            told = {int(number): AddedToken(**token) for number, token in configured.items()}
        except (AttributeError, TypeError, ValueError):
            raise UnlikeError("added_tokens_decoder is of another form") from None
        if {number: repr(token) for number, token in told.items()} != {n: repr(token) for n, token in filed.items()}:
            raise UnlikeError("tokenizer.json and tokenizer_config.json differ in the added tokens")
    if kind is None:
        return
    following = backend.get_vocab_size(with_added_tokens=False)
    own = backend.model
    for number, token in sorted(filed.items()):
        known = own.token_to_id(token.content)
        if (following if known is None else known) != number:
            raise UnlikeError(f"the number of {token.content!r} would change")
        following += known is None
        if token.content in special and not _is_plain(token):
            raise UnlikeError(f"{token.content!r} would change")


def _is_plain(token: "AddedToken") -> bool:
    return token.special and not (token.normalized or token.lstrip or token.rstrip or token.single_word)


def _templates(folder: Path, config: Json) -> str | dict[str, str]:
    """The only chat template, or several by name. Files of their own replace those of the configuration."""
    files = [*(folder / "additional_chat_templates").glob("*.jinja")]
    found = {path.stem: path.read_text("utf-8") for path in files}
    if (single := folder / "chat_template.jinja").is_file():
        if not files:
            return single.read_text("utf-8")
        found["default"] = single.read_text("utf-8")
    if found:
        return found
    given = config.get("chat_template") or {}
    if isinstance(given, str):
        return given
    try:
        return {str(one["name"]): str(one["template"]) for one in given}
    except (KeyError, TypeError):
        raise UnlikeError("chat_template is of another form") from None


def _check_built(backend: "Backend", expected: Json) -> None:
    """Check that the class would build the parts that the file has."""
    model = backend.model
    if type(model).__name__ != "BPE":
        raise UnlikeError("tokenizer.json is no BPE")
    found = {
        "normalizer": _state(backend.normalizer),
        "pre_tokenizer": _state(backend.pre_tokenizer),
        "unk_token": model.unk_token,
        "prefix": model.continuing_subword_prefix or None,
        "suffix": model.end_of_word_suffix or None,
        "dropout": model.dropout,
        "fuse_unk": model.fuse_unk,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": model.ignore_merges,
    }
    wanted = dict.fromkeys(("unk_token", "prefix", "suffix", "dropout")) | {"ignore_merges": False} | expected
    if differing := [name for name, value in wanted.items() if found[name] != value]:
        raise UnlikeError(f"its class would build another {differing[0]}")


def _state(part: Any) -> Any:
    """A part of a tokenizer as `tokenizer.json` has it, without what concerns offsets alone."""

    def shown(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: shown(value) for key, value in item.items() if key != "trim_offsets"}
        return [shown(inner) for inner in item] if isinstance(item, list) else item

    return None if part is None else shown(json.loads(part.__getstate__()))


def _by_qwen(pattern: str) -> Callable[[Json], Json]:
    def built(config: Json) -> Json:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        prefixed = bool(config.get("add_prefix_space"))
        levels = {"type": "ByteLevel", "add_prefix_space": prefixed, "use_regex": False}
        return {
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, levels]},
            "fuse_unk": False,
            "byte_fallback": False,
        }

    return built


def _by_gemma(config: Json) -> Json:
    unknown = config.get("unk_token", "<unk>")
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
        },
        "unk_token": _content(unknown),
        "fuse_unk": True,
        "byte_fallback": True,
    }  # fmt: skip


_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BUILT: Mapping[str, Callable[[Json], Json]] = {
    "Qwen2Tokenizer": _by_qwen(_QWEN2),
    "Qwen3_5Tokenizer": _by_qwen(_QWEN3_5),
    "GemmaTokenizer": _by_gemma,
}
"""The parts that a class builds anew from the vocabulary in `tokenizer.json`."""

_OF_QWEN = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "Qwen2Tokenizer": _OF_QWEN,
    "Qwen3_5Tokenizer": _OF_QWEN,
    "GemmaTokenizer": {
        "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>",
    },
}  # fmt: skip
"""The special tokens of a class where the configuration names none."""
