"""The reader of a model's configs and weight sizes, from a folder, the hub's cache or the hub, without its weights.

`read_checkpoint` reads configs and the headers of safetensors files: a few hundred kilobytes of a model of any size.
"""

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from engine.plan.hub import CONNECTIONS, AbsentError, CheckpointError, Hub, HubSettings, is_model_id
from engine.plan.parameters import estimated
from engine.plan.safetensors import PREFIX, HeaderError, header_length, read_header
from engine.plan.shape import ModelShape
from engine.plan.weights import Tensor, Weights

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIGS = ("generation_config.json", "tokenizer_config.json")

_NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "adapter_model", "rng_state", "consolidated")
"""Prefixes of files that look like weights but are not, or repeat the same weights."""

_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf")


_T = TypeVar("_T")


class Source(StrEnum):
    """The places a model is read from."""

    FOLDER = "folder"
    CACHE = "hub cache"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file of weights and its size in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The facts of a model that need no loading.

    Attributes:
        model: as the user named it.
        source: the kind of place it was read from.
        where: the folder, or the hub's address.
        config: config.json.
        generation_config: if there is one.
        tokenizer_config: if there is one.
        tensors: of its safetensors files; empty if it has none.
        files: of weights in another format, with their sizes; empty if there are safetensors.
        notes: its oddities, for a person.
    """

    model: str
    source: Source
    where: str
    config: dict[str, Any]
    generation_config: dict[str, Any] | None
    tokenizer_config: dict[str, Any] | None
    tensors: tuple[Tensor, ...]
    files: tuple[WeightFile, ...]
    notes: tuple[str, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as stored; 0 if none were found."""
        return sum(part.bytes for part in self.tensors or self.files)

    def weights(self, shape: ModelShape) -> Weights:
        """The weights: exact from the headers, else estimated from the config and scaled to the files' sizes if known.

        Raises:
            engine.plan.shape.UnknownShapeError: There are no headers, and the config does not tell.
        """
        if self.tensors:
            return Weights.of_tensors(self.tensors, shape)
        guess = estimated(shape)
        total = sum(part.bytes for part in guess.parts)
        if not self.files or not total:
            return guess
        packed = any(file.name.endswith(".gguf") for file in self.files)
        ratio = self.weight_bytes / total
        parts = [
            replace(part, bytes=round(part.bytes * ratio), floating=part.floating and not packed)
            for part in guess.parts
        ]
        return Weights(tuple(parts), self.weight_bytes, False)


def read_checkpoint(model: str, environ: Mapping[str, str] = os.environ, *, revision: str | None = None) -> Checkpoint:
    """Read what a plan needs of a model.

    Args:
        model: a folder, or a name on the hub.
        environ: the hub's variables are read from it: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
        revision: branch, tag or commit on the hub; the main branch by default.

    Raises:
        CheckpointError: It is missing, unreadable or broken. The message gives the way out.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _from_folder(model, folder, Source.FOLDER)
    if folder.is_file():
        raise CheckpointError(
            f"{model} is a file; a model is a folder with a config.json and its weights",
            "Name the folder it is in.",
        )
    if not is_model_id(model) or _is_a_path(model, folder):
        close = difflib.get_close_matches(folder.name, _folders(folder.parent), n=1)
        near = f"Did you mean {folder.parent / close[0]}?" if close else "Check the path."
        raise CheckpointError(f"there is no folder {model}", f"{near} A model of a hub is named owner/name.")
    settings = HubSettings.from_environ(environ)
    cached = _snapshot(settings.cache, model, revision or "main")
    if cached and (settings.offline or _complete(cached)):
        return _from_folder(model, cached, Source.CACHE)
    if settings.offline:
        raise CheckpointError(
            f"{model} is not in the hub cache {settings.cache}, and HF_HUB_OFFLINE is set",
            "Unset HF_HUB_OFFLINE, fetch it once where there is a network (`hf download`), or name its folder.",
        )
    with Hub(settings, model, revision or "main") as hub:
        return _from_hub(hub, model, settings.endpoint)


def _is_a_path(model: str, folder: Path) -> bool:
    """Whether a name that could be a hub id means a folder: its parent exists, or a folder with a similar name."""
    return folder.parent.is_dir() if "/" in model else bool(difflib.get_close_matches(model, _folders(folder.parent)))


def _folders(parent: Path) -> list[str]:
    try:
        return [entry.name for entry in parent.iterdir() if entry.is_dir()]
    except OSError:
        return []


# --- folders ----------------------------------------------------------------------------------------------------------


def _snapshot(cache: Path, model: str, revision: str) -> Path | None:
    """The folder of a model in the hub's cache: models--owner--name/snapshots/COMMIT."""
    repository = cache / f"models--{model.replace('/', '--')}"
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    folder = repository / "snapshots" / commit
    return folder if (folder / "config.json").is_file() else None


def _complete(folder: Path) -> bool:
    """Whether a snapshot has weights, and every file its index names."""
    index = folder / INDEX
    if index.is_file():
        return all((folder / name).is_file() for name in _shards(index.read_bytes(), str(index)))
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def _from_folder(model: str, folder: Path, source: Source) -> Checkpoint:
    path = folder / "config.json"
    try:
        config = _json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise CheckpointError(*_no_config(str(folder), {item.name for item in folder.iterdir()})) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})", "Check who may read it.") from error
    extras = [_json(path.read_bytes(), str(path)) if path.is_file() else None for path in map(folder.joinpath, CONFIGS)]
    notes: list[str] = []
    index = folder / INDEX
    if index.is_file():
        names = _shards(index.read_bytes(), str(index))
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of the {len(names)} files its index names, such as {missing[0]}",
                "The download was cut off: fetch the model again (`hf download` continues where it stopped).",
            )
    else:
        names = sorted(item.name for item in folder.glob("*.safetensors") if not item.name.startswith(_NOT_WEIGHTS))
        names = names or sorted(item.name for item in folder.glob("consolidated*.safetensors"))
    tensors = tuple(tensor for name in names for tensor in _header_of(folder / name))
    if index.is_file():
        notes += _cross_check(tensors, index.read_bytes())
    files: tuple[WeightFile, ...] = ()
    if not tensors:
        files = _other_weights({item.name: item.stat().st_size for item in folder.iterdir() if item.is_file()})
    return Checkpoint(model, source, str(folder), config, extras[0], extras[1], tensors, files, tuple(notes))


def _header_of(path: Path) -> tuple[Tensor, ...]:
    try:
        with path.open("rb") as file:
            length = header_length(file.read(PREFIX))
            header = file.read(length)
        if len(header) < length:
            raise HeaderError(f"it ends within its header, after {PREFIX + len(header)} bytes")  # noqa: TRY301 - as below
        tensors = read_header(header)
        expected, size = PREFIX + length + sum(tensor.bytes for tensor in tensors), path.stat().st_size
        if size < expected:
            raise HeaderError(f"it has {size} of the {expected} bytes its header describes")  # noqa: TRY301 - one way out
    except HeaderError as error:
        raise CheckpointError(
            f"{path} is no whole safetensors file: {error}", "The download was cut off: remove it and fetch it again."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})", "Check who may read it.") from error
    return tensors


# --- the hub ----------------------------------------------------------------------------------------------------------


def _from_hub(hub: Hub, model: str, endpoint: str) -> Checkpoint:
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        wanted = {name: pool.submit(_optional, hub.file, name) for name in ("config.json", *CONFIGS, INDEX)}
        single = pool.submit(_optional, hub.tensors, SINGLE)
        raw = {name: future.result() for name, future in wanted.items()}
        if raw["config.json"] is None:
            raise CheckpointError(*_no_config(f"{model} on {endpoint}", hub.sizes().keys()))
        notes: list[str] = []
        files: tuple[WeightFile, ...] = ()
        if index := raw[INDEX]:
            names = _shards(index, hub.url(INDEX))
            tensors = tuple(tensor for found in pool.map(lambda name: _shard(hub, name), names) for tensor in found)
            notes += _cross_check(tensors, index)
        else:
            tensors = single.result() or ()
        if not tensors:
            sizes = hub.sizes()
            names = sorted(
                name for name in sizes if name.endswith(".safetensors") and not name.startswith(_NOT_WEIGHTS)
            )
            names = names or sorted(name for name in sizes if name.startswith("consolidated") and "safetensors" in name)
            tensors = tuple(tensor for found in pool.map(lambda name: _shard(hub, name), names) for tensor in found)
            files = () if tensors else _other_weights(sizes)
    config, generation, tokenizer = (
        None if raw[name] is None else _json(raw[name] or b"", hub.url(name)) for name in ("config.json", *CONFIGS)
    )
    return Checkpoint(model, Source.HUB, endpoint, config or {}, generation, tokenizer, tensors, files, tuple(notes))


def _optional(read: Callable[[str], _T], name: str) -> _T | None:
    try:
        return read(name)
    except AbsentError:
        return None


def _shard(hub: Hub, name: str) -> tuple[Tensor, ...]:
    try:
        return hub.tensors(name)
    except AbsentError:
        raise CheckpointError(
            f"the index names {name}, which the hub does not have", "The upload is broken: choose another revision."
        ) from None


# --- both -------------------------------------------------------------------------------------------------------------


def _json(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON ({error})", "The file is broken: fetch the model again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} is JSON, but no object", "The file is broken: fetch the model again.")
    return value


def _shards(raw: bytes, where: str) -> list[str]:
    mapping = _json(raw, where).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise CheckpointError(f"{where} has no `weight_map`", "The file is broken: fetch the model again.")
    return sorted({str(name) for name in mapping.values()})


def _cross_check(tensors: Iterable[Tensor], index: bytes) -> list[str]:
    metadata = json.loads(index).get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    found = sum(tensor.bytes for tensor in tensors)
    if isinstance(stated, int | float) and int(stated) != found:
        return [f"its index says {int(stated)} bytes of weights, its files have {found}"]
    return []


def _other_weights(sizes: Mapping[str, int]) -> tuple[WeightFile, ...]:
    for ending in _OTHER_WEIGHTS:
        names = [name for name in sorted(sizes) if name.endswith(ending) and not name.startswith(_NOT_WEIGHTS)]
        if names:
            # Several GGUF files are the same model in several sizes. Plan for the largest.
            chosen = names if ending != ".gguf" else [max(names, key=lambda name: sizes[name])]
            return tuple(WeightFile(name, sizes[name]) for name in chosen)
    return ()


def _no_config(where: str, names: Iterable[str]) -> tuple[str, str]:
    found = set(names)
    cause = f"{where} has no config.json"
    if "params.json" in found:
        return (
            cause,
            "It is in Mistral's own format; plan with the repository that has the config.json of the same model.",
        )
    if "adapter_config.json" in found:
        return cause, "It is a LoRA adapter: plan its base model, and serve it with --enable-lora."
    if any(name.endswith(".gguf") for name in found):
        return (
            cause,
            "Name the GGUF file in it, for llama-server; for vLLM put the config.json of the original model beside it.",
        )
    return cause, "It is no model in the Transformers format: name the folder or repository that has its config.json."
