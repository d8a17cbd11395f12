"""A GGUF file on a model hub: `owner/name:file.gguf`, or `owner/name:Q4_K_M` as llama.cpp's `-hf` names one."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.cache import Progress
from engine.llama.files import parts_of
from engine.plan.gguf import HUB_FILE
from engine.plan.hub import AbsentError, CheckpointError, Hub, HubSettings

_MAIN = "main"
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$", re.IGNORECASE)


def is_on_hub(model: str) -> bool:
    """Whether a name means a GGUF file on a hub."""
    return HUB_FILE.fullmatch(model) is not None and not Path(model).exists()


def fetched(model: str, environ: Mapping[str, str], progress: Progress) -> str:
    """Download a GGUF file with all its parts into the hub's cache, where it is not there already; return its path.

    Args:
        model: As `is_on_hub` knows it.
        environ: Of the engine: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
        progress: Gets a line before a download.

    Raises:
        CheckpointError: The hub cannot be reached or refuses, or has no such file. The message gives the way out.
    """
    named = HUB_FILE.fullmatch(model)
    assert named is not None  # noqa: S101 - it was asked before
    repository, wanted = named["repository"], named["file"]
    settings = HubSettings.from_environ(environ)
    cached = settings.cache / f"models--{repository.replace('/', '--')}" / "snapshots"
    for folder in sorted(cached.glob("*"), reverse=True):
        names = {path.name for path in folder.glob("*.gguf")}
        if (found := _chosen(names, wanted)) and all((folder / part).is_file() for part in parts_of(found)):
            return str(folder / found)
    if settings.offline:
        raise CheckpointError(
            f"{model} is not in the hub cache {settings.cache}, and HF_HUB_OFFLINE is set",
            "Unset HF_HUB_OFFLINE, or name a GGUF file of this machine.",
        )
    with Hub(settings, repository, _MAIN) as hub:
        try:
            sizes = hub.sizes()
        except AbsentError:
            raise CheckpointError(f"{settings.endpoint} has no files of {repository}", "Check the name.") from None
    found = _chosen(sizes, wanted)
    if found is None:
        there = ", ".join(sorted(name for name in sizes if _is_model(name))) or "none"
        raise CheckpointError(
            f"{repository} has no one GGUF file named {wanted}", f"Name one that it has in its top folder: {there}."
        )
    parts = parts_of(found)
    progress(f"fetching {found} of {repository}: {sum(sizes.get(part, 0) for part in parts) / 2**30:.1f} GiB")
    return _downloaded(settings, repository, parts)


def _downloaded(settings: HubSettings, repository: str, parts: Iterable[str]) -> str:
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - it takes a second to import
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    try:
        paths = [
            hf_hub_download(
                repository, part, endpoint=settings.endpoint, token=settings.token or False, cache_dir=settings.cache
            )
            for part in parts
        ]
    except (HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"a GGUF file of {repository} could not be fetched from {settings.endpoint}: {error}",
            "Check the network, the token (HF_TOKEN) and the room on the disk of the hub's cache (HF_HOME).",
        ) from error
    return str(paths[0])


def _chosen(names: Iterable[str], wanted: str) -> str | None:
    """The file of that name, else the one model whose name has these bits; of a split one the first part."""
    able = sorted(name for name in names if _is_model(name))
    if wanted in able:
        return wanted
    bits = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", re.IGNORECASE)
    found = [name for name in able if bits.search(name) and ((part := _PART.search(name)) is None or int(part[1]) == 1)]
    return found[0] if len(found) == 1 else None


def _is_model(name: str) -> bool:
    return name.lower().endswith(".gguf") and not name.lower().startswith("mmproj")
