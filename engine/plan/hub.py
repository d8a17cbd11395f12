"""The client of a model hub over HTTP: it reads small files whole, and only the header of large ones.

The addresses, environment variables and error codes are those of huggingface_hub: `{endpoint}/{model}/resolve/
{revision}/{file}`, `X-Error-Code`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`. That
library reads its variables once, for the whole process, when it is imported (its `constants.py`); here each engine has
an environment of its own.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import quote

import httpx

from engine.plan.safetensors import PREFIX, HeaderError, header_length, read_header
from engine.plan.weights import Tensor

PUBLIC = "https://huggingface.co"
FIRST_READ = 256 * 1024
"""Bytes of the first read. Most shards' headers fit, so that one request is enough."""

SMALL_FILE = 64 * 1024 * 1024
"""Most bytes of a config or index."""

TIMEOUT = httpx.Timeout(10.0, connect=4.0)
CONNECTIONS = 16

_TRUE = frozenset({"1", "true", "yes", "on"})
_MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class CheckpointError(Exception):
    """A model that cannot be read.

    Attributes:
        cause: what is wrong, with the value that shows it.
        remedy: what to do about it.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\n{remedy}")
        self.cause = cause
        self.remedy = remedy


class AbsentError(Exception):
    """The hub has the model, but not this file."""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The hub and its cache, from the environment variables that vLLM also obeys."""

    endpoint: str
    token: str | None
    offline: bool
    cache: Path

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "HubSettings":
        """Read the environment, and the token's file if the environment has no token."""
        home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")
        home = Path(environ.get("HF_HOME") or home / "huggingface").expanduser()
        cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
        token = _cleaned(environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or "")
        if not token:
            with contextlib.suppress(OSError):
                token = _cleaned(Path(environ.get("HF_TOKEN_PATH") or home / "token").expanduser().read_text())
        offline = any(environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
        endpoint = (environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
        return cls(endpoint, token or None, offline, Path(cache).expanduser())


def _cleaned(token: str) -> str:
    """The token stripped, as huggingface_hub takes it: stored secrets often end with a newline."""
    return token.replace("\r", "").replace("\n", "").strip()


def is_model_id(model: str) -> bool:
    """Whether this can be a hub id, as "owner/name"."""
    return bool(_MODEL_ID.fullmatch(model)) and ".." not in model and "--" not in model


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A hub's refusal and its meaning. None matches any value."""

    code: str | None
    status: int | None
    token: bool | None
    cause: str
    remedy: str

    def means(self, code: str, status: int, *, token: bool) -> bool:
        return self.code in {None, code} and self.status in {None, status} and self.token in {None, token}


_REFUSALS = (
    _Refusal(
        "RevisionNotFound",
        None,
        None,
        "{model} has no revision {revision} on {hub}",
        "Name a branch, tag or commit it has.",
    ),
    _Refusal(
        "GatedRepo",
        None,
        True,
        "{model} is gated, and your token has no access to it",
        "Ask for access on {hub}/{model} with the account of the token; a fine-grained token also needs the permission "
        "to read gated repositories.",
    ),
    _Refusal(
        "GatedRepo",
        None,
        False,
        "{model} is gated, and no token is set",
        "Accept its terms on {hub}/{model}, then set HF_TOKEN to a token of that account.",
    ),
    _Refusal(
        "RepoNotFound",
        None,
        True,
        "{hub} has no model {model} that your token may see",
        "Check the name, as owner/name.",
    ),
    _Refusal(
        "RepoNotFound",
        None,
        False,
        "{hub} has no model {model}, and there is no such folder here",
        "Check the name, as owner/name; if it is private, set HF_TOKEN.",
    ),
    _Refusal(
        None,
        401,
        True,
        "{hub} refuses the token it was given for {model} (401)",
        "HF_TOKEN, or the file it was saved in, is not valid any more: make a new one on {hub}/settings/tokens.",
    ),
    _Refusal(
        None, 401, False, "{hub} wants a token for {model} (401)", "Check the name, as owner/name; then set HF_TOKEN."
    ),
    _Refusal(
        None, 403, None, "{hub} forbids {model} (403)", "Ask its owner for access, or use another token in HF_TOKEN."
    ),
    _Refusal(
        None,
        None,
        None,
        "{hub} answered {status} for {model}",
        "Try again later, or give the folder of a copy of the model.",
    ),
)
"""The meanings of a hub's refusals, by `X-Error-Code`, status, and whether a token was sent. The first match counts."""


class Hub:
    """One model on the hub, read over HTTP. Close after use.

    Raises:
        CheckpointError: The token cannot be one.
    """

    def __init__(self, settings: HubSettings, model: str, revision: str) -> None:
        self._settings = settings
        self._model = model
        self._revision = revision
        if settings.token and not (settings.token.isascii() and settings.token.isprintable()):
            raise CheckpointError(
                "HF_TOKEN, or the file it was saved in, is no token: it cannot stand in a header",
                f"Make a new one on {settings.endpoint}/settings/tokens.",
            )
        headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        # httpx drops the token on a redirect to another host, such as the hub's CDN.
        self._client = httpx.Client(headers=headers, follow_redirects=True, timeout=TIMEOUT, limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def url(self, name: str) -> str:
        """The address of a file."""
        return f"{self._settings.endpoint}/{self._model}/resolve/{quote(self._revision, safe='')}/{quote(name)}"

    def file(self, name: str) -> bytes:
        """Return a small file.

        Raises:
            AbsentError: The model does not have it.
            CheckpointError: The model cannot be read.
        """
        return self._start_of(name, SMALL_FILE, whole=True)

    def tensors(self, name: str) -> tuple[Tensor, ...]:
        """Return the tensors of a safetensors file from its header alone.

        Raises:
            AbsentError: The model does not have it.
            CheckpointError: The model cannot be read, or the file is no safetensors file.
        """
        start = self._start_of(name, FIRST_READ)
        try:
            end = PREFIX + header_length(start)
            if end > len(start):
                start = self._start_of(name, end)
            return read_header(start[PREFIX:end])
        except HeaderError as error:
            raise CheckpointError(
                f"{name} of {self._model} on {self._settings.endpoint} is no safetensors file: {error}",
                "The upload is broken: choose another revision with --revision, or another copy of the model.",
            ) from error

    def sizes(self) -> dict[str, int]:
        """Return the bytes of every file in the model's top folder, from the hub's listing.

        Raises:
            CheckpointError: The model cannot be read.
        """
        url = f"{self._settings.endpoint}/api/models/{self._model}/tree/{quote(self._revision, safe='')}"
        try:
            response = self._client.get(url)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code != HTTPStatus.OK:
            raise self._refusal(response)
        try:
            return {str(item["path"]): int(item["size"]) for item in response.json() if item.get("type") == "file"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreachable(error) from error

    def _start_of(self, name: str, length: int, *, whole: bool = False) -> bytes:
        headers = {} if whole else {"Range": f"bytes=0-{length - 1}", "Accept-Encoding": "identity"}
        read = bytearray()
        try:
            with self._client.stream("GET", self.url(name), headers=headers) as response:
                if response.status_code not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                    response.read()
                    raise self._refusal(response)
                for chunk in response.iter_bytes():
                    read += chunk
                    if len(read) >= length:  # a server without range support would send gigabytes
                        break
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return bytes(read[:length])

    def _unreachable(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"there is no folder {self._model} here, and {self._settings.endpoint} could not be reached for a model of "
            f"that name ({str(error) or type(error).__name__})",
            "Check the network and proxy (HTTPS_PROXY), name a mirror with HF_ENDPOINT, or give the folder of a copy "
            "of the model in place of its name.",
        )

    def _refusal(self, response: httpx.Response) -> Exception:
        """The meaning of a hub's answer that is not the file."""
        code, status = response.headers.get("X-Error-Code", ""), response.status_code
        if code == "EntryNotFound" or (status == HTTPStatus.NOT_FOUND and not code):
            return AbsentError()
        if "invalid" in response.headers.get("X-Error-Message", "").lower() and status == HTTPStatus.UNAUTHORIZED:
            code = ""  # the token is wrong, whatever else the hub says of the model
        told = {
            "model": self._model,
            "hub": self._settings.endpoint,
            "revision": self._revision,
            "status": str(status),
        }
        for refusal in _REFUSALS:
            if refusal.means(code, status, token=bool(self._settings.token)):
                return CheckpointError(refusal.cause.format(**told), refusal.remedy.format(**told))
        raise AssertionError  # the last entry of the table matches everything
