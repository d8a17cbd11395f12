"""The files of a tokenizer: those on a model hub, fetched or found in its cache, and what tells them from others."""

import hashlib
from pathlib import Path

_FILES = (
    "config.json", "params.json", "tekken.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "additional_chat_templates/*.jinja",
)  # fmt: skip
"""All that says how a model's prompts are made and encoded; for other kinds of tokenizers transformers fetches more."""
_OF_FOLDERS = ("*.model", "*.tiktoken", "vocab.*", "merges.txt", "*.py")
"""What other kinds of tokenizers are made of besides. A hub's cache may get these later, by whoever needs them."""
_TIMEOUT = 5.0
"""Seconds for the hub's first answer."""

# The hub's client is imported at first use: it takes 17 MB, and a folder needs none of it.


def hub_answers() -> bool:
    """Whether the hub can be asked. Blocks for a moment."""
    import httpx  # noqa: PLC0415
    from huggingface_hub import constants  # noqa: PLC0415

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        httpx.head(constants.ENDPOINT, timeout=_TIMEOUT)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


def missed(error: Exception) -> bool:
    """Whether an error of `fetched` says that nothing is cached here."""
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    return isinstance(error, LocalEntryNotFoundError)


def fetched(name: str, *, offline: bool) -> Path:
    """The folder with a hub id's files, brought up to date unless `offline`. Raises whatever its client raises."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    return Path(snapshot_download(name, allow_patterns=[*_FILES], local_files_only=offline))


def digest(files: Path, *, cached: bool) -> bytes:
    """A digest of the files in a tokenizer's folder. Equal ones make the same tokenizer.

    `cached`: whether the folder is of a hub's cache.
    """
    found = hashlib.sha256()
    for pattern in _FILES if cached else _FILES + _OF_FOLDERS:
        for path in sorted(files.glob(pattern)):
            if path.is_file():
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
                found.update(f"{path.relative_to(files)}\0".encode(errors="surrogateescape") + content)
    return found.digest()
