"""The check of a model's tokenizer, template and headers against each other, without its weights and without torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.diagnosis import vocabulary
from engine.diagnosis.sign import Diagnosis, Kind
from engine.diagnosis.vocabulary import ModelSide, TokenizerSide
from engine.plan.checkpoint import Checkpoint, Source, read_checkpoint
from engine.plan.hub import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONVERSATION = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True, slots=True)
class Examined:
    """The things looked at, in words, and the findings."""

    looked_at: tuple[str, ...]
    findings: tuple[Diagnosis, ...]


def examine(model: str, environ: Mapping[str, str] = os.environ) -> Examined:
    """Look at a model folder, or a model of the hub."""
    try:
        checkpoint = read_checkpoint(model, environ)
    except CheckpointError as error:
        return Examined((), (Diagnosis(*_sentences(error), kind=Kind.MODEL, sign="model not whole"),))
    seen = [f"{checkpoint.weight_bytes / 2**20:,.0f} MiB of weights in {checkpoint.where}", *checkpoint.notes]
    found: list[Diagnosis] = []
    if not checkpoint.weight_bytes:
        found.append(
            Diagnosis(
                f"{checkpoint.where} holds no weights.",
                "Complete the download of the model (*.safetensors).",
                kind=Kind.MODEL,
                sign="missing weights",
            )
        )
    try:
        tokenizer = _loaded(checkpoint)
    except Exception as error:  # noqa: BLE001 - whatever transformers raises is the finding
        said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        found.append(
            Diagnosis(
                "The model's tokenizer cannot be loaded.",
                "Check that its tokenizer files are there and whole, or give --tokenizer.",
                said,
                kind=Kind.TOKENIZER,
                sign="tokenizer not loaded",
            )
        )
        return Examined(tuple(seen), tuple(found))
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    expected = ModelSide.read(checkpoint.config, checkpoint.generation_config, shapes)
    brought = _side(tokenizer, checkpoint)
    return Examined((*seen, *vocabulary.looked_at(expected, brought)), (*found, *vocabulary.judge(expected, brought)))


def _loaded(checkpoint: Checkpoint) -> "PreTrainedTokenizerBase":
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # no PyTorch: none is needed
    import transformers  # noqa: PLC0415 - it takes a second, and only this needs it

    transformers.logging.set_verbosity_error()
    where = checkpoint.model if checkpoint.source is Source.HUB else checkpoint.where
    tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(where)
    return tokenizer


def _side(tokenizer: "PreTrainedTokenizerBase", checkpoint: Checkpoint) -> TokenizerSide:
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad", "unk")}
    template = tokenizer.chat_template
    rendered = error = ""
    if template is not None:
        try:
            rendered = str(tokenizer.apply_chat_template(_CONVERSATION, tokenize=False, add_generation_prompt=True))
        except Exception as failure:  # noqa: BLE001 - a template may raise anything
            error = f"{type(failure).__name__}: {failure}"[:300]
    tokens = {marker: tokenizer.encode(marker, add_special_tokens=False) for marker in vocabulary.markers(rendered)}
    return TokenizerSide(
        loaded=type(tokenizer).__name__,
        declared=str((checkpoint.tokenizer_config or {}).get("tokenizer_class") or ""),
        highest=max(tokenizer.get_vocab().values(), default=-1),
        special={name: one for name, one in special.items() if isinstance(one, int)},
        template=None if template is None else str(template),
        rendered=rendered,
        error=error,
        one_token={marker: len(ids) == 1 and ids[0] != special["unk"] for marker, ids in tokens.items()},
    )


def _sentences(error: CheckpointError) -> tuple[str, str]:
    return error.cause[:1].upper() + error.cause[1:].rstrip(".") + ".", error.remedy
