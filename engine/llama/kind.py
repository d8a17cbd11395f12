"""llama-server, as a kind of engine that kvgate launches."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.filling import Filled
from engine.gpu import Gpu
from engine.gpu_placement import devices
from engine.llama import arguments, files, planned
from engine.memory_ladder import Bounds
from engine.phases import StartPhase, signs
from engine.spec import EngineKind, EngineSpec, Fronted

_TEMPLATE = "--chat-template-file"


def _arguments(spec: EngineSpec) -> tuple[str, ...]:
    listens = ("--host", spec.host.strip("[]"), "--port", str(spec.port))
    return ("--model", spec.model, "--alias", spec.served_name, *listens)


def _check(model: str, _args: Sequence[str], _environ: Mapping[str, str]) -> Mapping[str, Any]:
    files.check_gguf(model)
    return {}


def _fronted(_model: str, args: Sequence[str]) -> Fronted:
    # Each slot says what it may use, which is less where the cache is split, or larger than the model's own context.
    tokens = arguments.integer(args, "--ctx-size")
    return Fronted(chat_template=arguments.value(args, _TEMPLATE), kv_tokens=tokens if tokens and tokens > 0 else None)


def _one(_args: Sequence[str]) -> int:
    return 1


def _unknown(_args: Sequence[str]) -> float:
    return 0.0


def _filled(
    model: str,
    args: Sequence[str],
    cards: Sequence[Gpu],
    _named: bool,  # noqa: FBT001
    engines: int,
) -> tuple[Filled, ...]:
    return planned.filled(model, args, cards, engines)


def _as_it_is(spec: EngineSpec, fit: Bounds | None) -> tuple[EngineSpec, Bounds | None]:
    return spec, fit


def _shortage(spec: EngineSpec, environ: Mapping[str, str], gpus: Sequence[Gpu], host_free: int) -> str | None:
    seen = devices(spec, [card.index for card in gpus], environ)
    return planned.shortage(spec, [card for card in gpus if str(card.index) in seen], host_free)


def _no_download(_spec: EngineSpec, _environ: Mapping[str, str]) -> None:
    return None


LLAMA_SERVER = EngineKind(
    name="llama-server",
    words=(),
    refused=arguments.REFUSED_FLAGS,
    hidden=arguments.HIDDEN_VARIABLES,
    debug={"LLAMA_ARG_LOG_VERBOSITY": "5", "CUDA_LAUNCH_BLOCKING": "1"},
    template_flag=_TEMPLATE,
    phases=signs(
        (r"load_model: loading model '", StartPhase.LOADING, ""),
        (r"load_model: initializing, n_slots = \d+, n_ctx_slot = (\d+)", StartPhase.PROFILING, r"{} tokens for a slot"),
        (r"\blistening on (http\S+)", StartPhase.SERVING, r"{}"),
    ),
    ladder=(),
    flags=arguments.flags,
    arguments=_arguments,
    served_name=files.served_name,
    check=_check,
    fronted=_fronted,
    gpus_needed=_one,
    share_of=_unknown,
    filled=_filled,
    tuned=_as_it_is,
    shortage=_shortage,
    download=_no_download,
    sleep=None,
)
