"""llama.cpp's server in this process, for a machine without the program: `xllamacpp` brings it as a library.

    python -m engine.llama.server --model MODEL.gguf --port 8000

It takes the flags of the program that are in `OPTIONS`, and refuses others with the program's own words.
"""

import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_FLASH = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}


def _cache_type(name: str) -> Any:
    if name not in _CACHE_TYPES:
        raise ValueError(f"Unsupported cache type: {name}")
    import xllamacpp  # noqa: PLC0415 - its library is 100 MB, and an argument may be wrong

    return getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}")


def _flash(state: str) -> Any:
    if state not in _FLASH:
        raise ValueError(f"unknown value for --flash-attn: '{state}'")
    import xllamacpp  # noqa: PLC0415

    return getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{_FLASH[state]}")


def _on(state: str) -> bool:
    if state not in {"on", "off"}:
        raise ValueError(f"expected on or off, not '{state}'")
    return state == "on"


def _no_device(name: str) -> None:
    if name != "none":
        raise ValueError(f"invalid device: {name}")


def _read(file: str) -> str:
    return Path(file).read_text()


def _one(value: str) -> list[str]:
    return [value]


def _names(value: str) -> set[str]:
    return set(value.split(","))


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of llama-server and what it sets.

    Attributes:
        names: Its names.
        sets: The fields of xllamacpp's parameters that get its value; none for a flag that is about cards.
        read: Turns its value into the field's; None for a switch.
        off: Names that turn a switch off.
    """

    names: tuple[str, ...]
    sets: tuple[str, ...]
    read: Callable[[str], Any] | None = None
    off: tuple[str, ...] = ()


OPTIONS = (
    Option(("--model", "-m"), ("model.path",), str),
    Option(("--alias", "-a"), ("model_alias",), _names),
    Option(("--host",), ("hostnames",), _one),
    Option(("--port",), ("port",), int),
    Option(("--ctx-size", "-c"), ("n_ctx",), int),
    Option(("--parallel", "-np"), ("n_parallel",), int),
    Option(("--kv-unified", "-kvu"), ("kv_unified",), off=("--no-kv-unified", "-no-kvu")),
    Option(("--gpu-layers", "-ngl", "--n-gpu-layers"), ("n_gpu_layers",), int),
    Option(("--cache-type-k", "-ctk"), ("cache_type_k",), _cache_type),
    Option(("--cache-type-v", "-ctv"), ("cache_type_v",), _cache_type),
    Option(("--device", "-dev"), (), _no_device),
    Option(("--fit", "-fit"), ("fit_params",), _on),
    Option(("--no-kv-offload", "-nkvo"), ("no_kv_offload",), off=("--kv-offload", "-kvo")),
    Option(("--cpu-moe", "-cmoe"), ()),
    Option(("--n-cpu-moe", "-ncmoe"), (), int),
    Option(("--flash-attn", "-fa"), ("flash_attn_type",), _flash),
    Option(("--threads", "-t"), ("cpuparams.n_threads", "cpuparams_batch.n_threads"), int),
    Option(("--threads-batch", "-tb"), ("cpuparams_batch.n_threads",), int),
    Option(("--threads-http",), ("n_threads_http",), int),
    Option(("--batch-size", "-b"), ("n_batch",), int),
    Option(("--ubatch-size", "-ub"), ("n_ubatch",), int),
    Option(("--predict", "-n", "--n-predict"), ("n_predict",), int),
    Option(("--cache-ram", "-cram"), ("cache_ram_mib",), int),
    Option(("--cache-reuse",), ("n_cache_reuse",), int),
    Option(("--swa-full",), ("swa_full",)),
    Option(("--chat-template",), ("chat_template",), str),
    Option(("--chat-template-file",), ("chat_template",), _read),
    Option(("--jinja",), ("use_jinja",), off=("--no-jinja",)),
    Option(("--mmproj", "-mm"), ("mmproj.path",), str),
    Option(("--embedding", "--embeddings"), ("embedding",)),
    Option(("--metrics",), ("endpoint_metrics",)),
    Option(("--warmup",), ("warmup",), off=("--no-warmup",)),
    Option(("--sleep-idle-seconds",), ("sleep_idle_seconds",), int),
    Option(("--timeout", "-to"), ("timeout_read", "timeout_write"), int),
    Option(("--verbosity", "-lv", "--log-verbosity"), ("verbosity",), int),
)


class ArgumentError(Exception):
    """An argument that cannot be used, in llama-server's words."""


def fields(words: Iterable[str]) -> dict[str, Any]:
    """The parameters that a command line sets, each by its path. The last of a repeated flag counts.

    Raises:
        ArgumentError: A flag is unknown, or has no value that it could have.
    """
    on = {name: option for option in OPTIONS for name in option.names}
    off = {name: option for option in OPTIONS for name in option.off}
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        name = word.replace("_", "-") if word.startswith("--") else word
        option = on.get(name) or off.get(name)
        if option is None:
            raise ArgumentError(f"error: invalid argument: {word}")
        found |= dict.fromkeys(option.sets, _value(name, option.read, left) if option.read else name in on)
    return found


def _value(name: str, read: Callable[[str], Any], words: Iterable[str]) -> Any:
    value = next(iter(words), None)
    if value is None:
        raise ArgumentError(f'error while handling argument "{name}": expected value for argument')
    try:
        return read(value)
    except OSError:
        raise ArgumentError(f"error while handling argument \"{name}\": error: failed to open file '{value}'") from None
    except ValueError as error:
        raise ArgumentError(f'error while handling argument "{name}": {error}') from None


def main() -> None:
    """Serve until a signal ends this process."""
    try:
        chosen = fields(sys.argv[1:])
    except ArgumentError as error:
        _end(str(error))
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    for path, value in chosen.items():
        *parents, name = path.split(".")
        target = params
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, name, value)
    try:
        serving = xllamacpp.Server(params)
    except RuntimeError as error:
        _end(f"error: {error}")
    while serving.listening_address:
        signal.pause()


def _end(said: str) -> NoReturn:
    print(said, file=sys.stderr, flush=True)  # noqa: T201 - it speaks as the program does
    sys.exit(1)


if __name__ == "__main__":
    main()
