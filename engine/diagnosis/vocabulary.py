"""PURE. The check that tokenizer and chat template match a model: classes, special ids, vocabulary and embedding."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.diagnosis.sign import Diagnosis, Kind

_SPECIAL = ("bos", "eos", "pad", "unk")
_MARKERS = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?(?:start_of_turn|end_of_turn|s)>|\[/?INST\]|<\uff5c[^\uff5c]{1,40}\uff5c>"
)
"""The markers chat templates put between turns. Each is one token of the tokenizer it was written for."""


@dataclass(frozen=True, slots=True)
class ModelSide:
    """The model's expectations.

    Attributes:
        architecture: Its class, as config.json names it.
        vocab_size: From config.json.
        rows: Rows of the embedding in the weights; None if no header was read.
        special: Special ids by name (`eos` may have several), from config.json and generation_config.json.
    """

    architecture: str
    vocab_size: int | None
    rows: int | None
    special: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, config: Mapping[str, Any], generation: Mapping[str, Any] | None, shapes: Mapping[str, Sequence[int]]
    ) -> "ModelSide":
        """Read it from the configs, and from the shapes of the weights by name."""
        text = config.get("text_config") or config.get("llm_config") or config
        special: dict[str, list[int]] = {}
        for source in (text, generation or {}):
            for name in _SPECIAL:
                value = source.get(f"{name}_token_id")
                for one in value if isinstance(value, list) else [value]:
                    if isinstance(one, int) and one >= 0 and one not in special.setdefault(name, []):
                        special[name].append(one)
        rows = next((shape[0] for name, shape in shapes.items() if _EMBEDDING.search(name) and shape), None)
        architecture = (config.get("architectures") or ["unknown"])[0]
        return cls(str(architecture), text.get("vocab_size", config.get("vocab_size")), rows, special)


_EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings)\.weight$|^embed\.weight$"
)


@dataclass(frozen=True, slots=True)
class TokenizerSide:
    """The tokenizer's side.

    Attributes:
        loaded: The class it was loaded as.
        declared: The class that tokenizer_config.json names; empty if it names none.
        highest: Its highest id.
        special: Its special ids by name.
        template: Its chat template; None if it has none.
        rendered: A short conversation rendered with the template; empty without one, or if that failed.
        error: Why the rendering failed.
        one_token: For each marker of the rendered text, whether it is one token.
    """

    loaded: str
    declared: str
    highest: int
    special: Mapping[str, int] = field(default_factory=dict)
    template: str | None = None
    rendered: str = ""
    error: str = ""
    one_token: Mapping[str, bool] = field(default_factory=dict)


def markers(rendered: str) -> list[str]:
    """The parts of a rendered conversation that should be one token each."""
    return sorted(set(_MARKERS.findall(rendered)))


def judge(model: ModelSide, tokenizer: TokenizerSide) -> Iterator[Diagnosis]:
    """Say what does not match."""
    sizes = [size for size in (model.rows, model.vocab_size) if size]
    rows = min(sizes, default=None)
    if model.rows and model.vocab_size and model.rows < model.vocab_size:
        yield _wrong(
            f"The embedding in the weights has {model.rows} rows, and config.json says {model.vocab_size}.",
            "Put back the model's own config.json; after tokens were added, save model and config together "
            "(`resize_token_embeddings`).",
            model.architecture,
            "weights for another vocabulary",
        )
    if rows is not None and tokenizer.highest >= rows:
        yield _wrong(
            f"The tokenizer has ids up to {tokenizer.highest}, and the embedding {rows} rows: the first such token "
            "ends the engine.",
            "Take tokenizer and weights from one model.",
            f"{tokenizer.loaded} over {model.architecture}",
            "token beyond the embedding",
        )
    yield from _special(model, tokenizer, rows)
    yield from _template(tokenizer)


def _special(model: ModelSide, tokenizer: TokenizerSide, rows: int | None) -> Iterator[Diagnosis]:
    for name, ids in model.special.items():
        beyond = [one for one in ids if one > tokenizer.highest or (rows is not None and one >= rows)]
        if beyond:
            yield _wrong(
                f"The model's {name} token is {beyond[0]}, which is beyond the tokenizer's last id {tokenizer.highest}"
                + (f" or the embedding's {rows} rows." if rows is not None else "."),
                "Take config.json, generation_config.json and the tokenizer from one model.",
                _ids(model, tokenizer),
                "special ids of another tokenizer",
            )
    own, stops = tokenizer.special.get("eos"), model.special.get("eos", ())
    if own is not None and stops and own not in stops:
        yield _wrong(
            f"The tokenizer ends a turn with {own}, and the model stops at {', '.join(map(str, stops))}: answers may "
            "not end.",
            f"Add {own} to eos_token_id in generation_config.json, or send stop_token_ids: [{own}].",
            _ids(model, tokenizer),
            "special ids of another tokenizer",
        )


def _template(tokenizer: TokenizerSide) -> Iterator[Diagnosis]:
    if tokenizer.template is None:
        yield _wrong(
            "The model has no chat template: vLLM refuses chat requests with 400.",
            "Give --chat-template FILE, or use the instruct version of the model; /v1/completions works without one.",
            f"tokenizer class {tokenizer.loaded}",
            "no chat template",
        )
    elif tokenizer.error:
        yield _wrong(
            f"The chat template cannot be rendered: {tokenizer.error}",
            "It was written for another model or engine: give --chat-template FILE with the model's own.",
            f"tokenizer class {tokenizer.loaded}",
            "chat template of another model",
        )
    elif foreign := [marker for marker, one in tokenizer.one_token.items() if not one]:
        yield _wrong(
            f"The chat template writes {', '.join(foreign)}, which the tokenizer takes for plain text: it was written "
            "for another model.",
            "Give --chat-template FILE with the model's own, or take the tokenizer that goes with the template.",
            f"tokenizer class {tokenizer.loaded}",
            "chat template of another model",
        )


def looked_at(model: ModelSide, tokenizer: TokenizerSide) -> Iterator[str]:
    """Classes, ids and sizes, for a person to compare."""
    declared = f" (declared {tokenizer.declared})" if tokenizer.declared not in {"", tokenizer.loaded} else ""
    yield f"model class {model.architecture}, tokenizer class {tokenizer.loaded}{declared}"
    yield f"vocabulary {model.vocab_size}, embedding rows {model.rows or '?'}, tokenizer ids up to {tokenizer.highest}"
    yield _ids(model, tokenizer)
    yield "chat template: " + ("none" if tokenizer.template is None else f"{len(tokenizer.template):,} characters")


def _ids(model: ModelSide, tokenizer: TokenizerSide) -> str:
    of_model = ", ".join(f"{name} {'/'.join(map(str, ids))}" for name, ids in model.special.items() if ids)
    of_tokenizer = ", ".join(f"{name} {one}" for name, one in tokenizer.special.items())
    return f"special ids of the model: {of_model or 'none'}; of the tokenizer: {of_tokenizer or 'none'}"


def _wrong(cause: str, remedy: str, evidence: str, sign: str) -> Diagnosis:
    return Diagnosis(cause, remedy, evidence, kind=Kind.TOKENIZER, sign=sign)
