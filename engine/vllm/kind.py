"""vLLM, as a kind of engine that kvgate launches."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import filling, room
from engine.arguments import Arguments
from engine.download import Download
from engine.filling import Filled
from engine.gpu import Gpu
from engine.host_memory import total_bytes
from engine.memory_ladder import LADDER, Bounds
from engine.phases import VLLM_SIGNS
from engine.plan.checkpoint import read_checkpoint
from engine.plan.hub import CheckpointError
from engine.preflight import check_model
from engine.spec import EngineKind, EngineSpec, Fronted, Sleep
from engine.vllm import command

_TEMPLATE = "--chat-template"


def _flags(args: Sequence[str]) -> frozenset[str]:
    return Arguments.parse(args).flags


def _served_name(model: str) -> str:
    """The folder's name, or the hub id."""
    folder = Path(model)
    return folder.resolve().name if folder.is_dir() else model


def _check(model: str, args: Sequence[str], environ: Mapping[str, str]) -> Mapping[str, Any]:
    return check_model(model, Arguments.parse(args), environ)


def _fronted(model: str, args: Sequence[str]) -> Fronted:
    given = Arguments.parse(args)
    limit, ranks = given.integer("--max-num-seqs"), max(1, given.integer("--data-parallel-size") or 1)
    return Fronted(
        tokenizer=given.text("--tokenizer") or model,
        chat_template=given.text(_TEMPLATE),
        max_num_seqs=None if limit is None or limit < 1 else limit * ranks,  # vLLM refuses a limit under 1
    )


def _gpus_needed(args: Sequence[str]) -> int:
    return filling.gpus_needed(Arguments.parse(args))


def _share_of(args: Sequence[str]) -> float:
    return filling.share_of(Arguments.parse(args))


def _filled(
    _model: str,
    args: Sequence[str],
    cards: Sequence[Gpu],
    named: bool,  # noqa: FBT001
    engines: int,
) -> tuple[Filled, ...]:
    return filling.filled(Arguments.parse(args), cards, named=named, engines=engines)


def _tuned(spec: EngineSpec, fit: Bounds | None) -> tuple[EngineSpec, Bounds | None]:
    """The spec with a KV cache for engines on CPUs; GPUs ignore it."""
    space = command.kv_space(spec, os.environ, total_bytes())
    if space is None:
        return spec, fit
    if fit is not None and not fit.on_gpus:
        fit = replace(fit, kv_space=space)
    return replace(spec, env={**spec.env, command.KV_SPACE: str(space)}), fit


def _shortage(spec: EngineSpec, environ: Mapping[str, str], gpus: Sequence[Gpu], host_free: int) -> str | None:
    revision = Arguments.parse(spec.args).text("--revision")
    try:
        weights = read_checkpoint(spec.model, {**environ, **spec.env}, revision=revision).weight_bytes or None
    except CheckpointError:
        weights = None
    return room.shortage(spec, environ, gpus=gpus, host_free=host_free, weights=weights)


def _download(spec: EngineSpec, environ: Mapping[str, str]) -> Download | None:
    return Download.of(spec.model, environ, Arguments.parse(spec.args).text("--revision"))


VLLM = EngineKind(
    name="vLLM",
    words=command.WORDS,
    refused=command.REFUSED_FLAGS,
    hidden=frozenset(),
    debug=command.DEBUG_ENVIRONMENT,
    template_flag=_TEMPLATE,
    phases=VLLM_SIGNS,
    ladder=LADDER,
    flags=_flags,
    arguments=command.arguments,
    served_name=_served_name,
    check=_check,
    fronted=_fronted,
    gpus_needed=_gpus_needed,
    share_of=_share_of,
    filled=_filled,
    tuned=_tuned,
    shortage=_shortage,
    download=_download,
    sleep=Sleep(("--enable-sleep-mode",), {"VLLM_SERVER_DEV_MODE": "1"}),
)
