"""The LoRA adapters of one engine: those that are wanted are loaded, those that are no longer wanted are unloaded.

vLLM has the routes for it only with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`. It loads an adapter
before it answers, so what is wrong with one is known before a request asks for it.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec
import structlog

from gateway.admission.events import EndpointId
from gateway.endpoints.replies import NoReply, Reply
from gateway.wire.stream import error_message

LOADED, LOADING, UNLOADING = "loaded", "loading", "unloading"
NO_ROUTE = (
    "the engine has no route for it: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or name "
    "the adapter in its --lora-modules"
)
IN_USE = (
    "not yet, requests for the old one run: a vLLM with as many adapters as --max-loras may die of two of one name; "
    "wait for their end, or give the new one another name"
)
_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_log = structlog.get_logger("kvgate.endpoints")

Loaded = Mapping[str, str | None]
"""What an engine has, by its `/v1/models`: the path of each adapter, if it tells."""


class Calls(NamedTuple):
    """The calls to an engine.

    Attributes:
        ask: posts a body to a route.
        in_use: whether it has requests for an adapter of this name beside which it could not have another one.
        listed: reads what it has.
    """

    ask: Callable[[str, bytes], Awaitable[Reply | NoReply]]
    in_use: Callable[[str], Awaitable[bool]]
    listed: Callable[[], Awaitable[Loaded]]


class _Kept(NamedTuple):
    """An adapter that stays, as the one that was to take its place could not be loaded."""

    path: str
    reason: str


class Adapters:
    """Keeps one engine's adapters as they are wanted.

    Args:
        endpoint: of the engine.
        configured: paths by name.
    """

    def __init__(self, endpoint: EndpointId, configured: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._configured = dict(configured)
        self._given: dict[str, str | None] = {}
        """Those that an operator loaded while it ran; None for one that was unloaded."""
        self._ours: defaultdict[str, set[str]] = defaultdict(set)
        """The paths at which each was wanted at some time: what others loaded is not ours to unload."""
        self._failed: dict[str, str] = {}
        """Why an adapter was not loaded."""
        self._kept: dict[str, _Kept] = {}
        """Those that stay until another path is wanted."""
        self.asked: str | None = None
        """The one that the engine is asked to load or unload just now."""
        self._answers = True
        """Whether the engine answered when it was last asked."""

    @property
    def wanted(self) -> dict[str, str]:
        """Paths by name."""
        kept = {name: adapter.path for name, adapter in self._kept.items()}
        both: dict[str, str | None] = {**self._configured, **self._given, **kept}
        return {name: path for name, path in both.items() if path is not None}

    @property
    def loading(self) -> bool:
        """Whether the engine works on one. vLLM generates nothing meanwhile.

        One that did not answer for another gets no more time: it may hang.
        """
        return self.asked is not None and self._answers

    def govern(self, configured: Mapping[str, str]) -> None:
        """Go by other settings."""
        self._note()
        for name in configured.keys() | self._configured.keys():
            if configured.get(name) != self._configured.get(name):
                self._kept.pop(name, None)
                self._failed.pop(name, None)
        self._configured = dict(configured)

    def give(self, name: str, path: str | None) -> None:
        """Want an adapter until kvgate ends; None: do not want it any more, whatever the settings say."""
        self._note()
        self._ours[name].add(path or "")
        self._failed.pop(name, None)
        self._kept.pop(name, None)
        self._given[name] = path

    def states(self, loaded: Loaded, unasked: str | None = None) -> dict[str, str]:
        """Of each that is wanted: loaded, loading, or why it is not; of each that is to go: unloading, or why not.

        `unasked`: why the engine is not asked for it now.
        """
        wanted = self.wanted
        told = dict.fromkeys(wanted, LOADED) | self.strange(loaded)
        for _, body in self.pending(loaded):
            name = body["lora_name"]
            told[name] = self._failed.get(name) or unasked or (LOADING if name in wanted else UNLOADING)
        return told | {name: adapter.reason for name, adapter in self._kept.items()}

    def strange(self, loaded: Loaded) -> dict[str, str]:
        """What is to be said of those that the engine has under a wanted name from a path that was not asked for.

        Whoever loaded one may know it by another path. So did a gateway that ran before, by settings that have changed.
        """
        wanted = self.wanted
        return {
            name: f"it was there, from {path}: /kvgate/adapters/load replaces it by the one from {wanted[name]}"
            for name, path in loaded.items()
            if path and path != wanted.get(name, path) and not self._is_stale(name, path, wanted[name])
        }

    async def settle(self, loaded: Loaded, engine: Calls, *, again: bool = True) -> bool:
        """Load what the engine lacks, and unload what it need not have; returns whether that changed anything.

        `again`: ask also for what has failed before.
        An adapter whose successor cannot be loaded is loaded again: it served, and the mistake is the successor's.
        """
        changed = False
        unloaded: dict[str, str] = {}
        put_off: set[str] = set()
        for route, body in self.due(loaded, again=again):
            name = body["lora_name"]
            if name in put_off or (name in self.wanted and await engine.in_use(name)):
                put_off.add(name)
                self._note_failure(route, name, IN_USE)
                continue
            done = await self._asked(engine, route, body)
            changed |= done
            if route == _UNLOAD and done and (path := loaded[name]) is not None:
                unloaded[name] = path
            elif route == _LOAD and not done and name in unloaded:
                await self._keep(engine, name, unloaded[name], body["lora_path"])
        return changed

    def pending(self, loaded: Loaded) -> list[tuple[str, dict[str, str]]]:
        """What the engine is to be asked: routes and bodies."""
        wanted = self.wanted
        asked: list[tuple[str, dict[str, str]]] = []
        for name in dict.fromkeys((*loaded, *wanted)):
            stale = name in loaded and self._is_stale(name, loaded[name], wanted.get(name))
            if stale:
                asked.append((_UNLOAD, {"lora_name": name}))
            if name in wanted and (stale or name not in loaded):
                asked.append((_LOAD, _body(name, wanted[name])))
        return asked

    def due(self, loaded: Loaded, *, again: bool) -> list[tuple[str, dict[str, str]]]:
        """What of this is asked now: all, or, if not `again`, what has not failed before."""
        return [ask for ask in self.pending(loaded) if again or ask[1]["lora_name"] not in self._failed]

    def _is_stale(self, name: str, path: str | None, wanted: str | None) -> bool:
        """Whether an adapter that is loaded from this path is to go, for good or for one from another path."""
        if wanted is None:
            return name in self._ours
        return path is not None and path != wanted and (path in self._ours.get(name, ()) or name in self._given)

    def _note(self) -> None:
        for name, path in self.wanted.items():
            self._ours[name].add(path)

    async def _keep(self, engine: Calls, name: str, path: str, refused: str) -> None:
        """Load the one that was there before, until another is wanted than the one that was refused."""
        reason = self._failed[name]
        if await self._asked(engine, _LOAD, _body(name, path)) and self.wanted.get(name) == refused:
            self._kept[name] = _Kept(path, f"{reason.rstrip('.')}. The one from {path} stays")

    async def _asked(self, engine: Calls, path: str, body: Mapping[str, str]) -> bool:
        """Ask for an adapter; whether it is as wanted then.

        Another gateway may have asked for the same just before, or only the answer was lost.
        """
        self.asked = name = body["lora_name"]
        try:
            reply = await engine.ask(path, msgspec.json.encode(body))
            self._answers = isinstance(reply, Reply)
            done = (isinstance(reply, Reply) and reply.ok) or _is_so(path, body, await engine.listed())
        finally:
            self.asked = None
        if done:
            self._failed.pop(name, None)
            _log.info("adapter loaded" if path == _LOAD else "adapter unloaded", endpoint=self._endpoint, adapter=name)
            return True
        self._note_failure(path, name, _reason(reply))
        return False

    def _note_failure(self, path: str, name: str, reason: str) -> None:
        if self._failed.get(name) != reason:
            self._failed[name] = reason
            said = "adapter not loaded" if path == _LOAD else "adapter not unloaded"
            _log.warning(said, endpoint=self._endpoint, adapter=name, reason=reason)


def _is_so(path: str, body: Mapping[str, str], loaded: Loaded) -> bool:
    """Whether an engine that has these adapters is as this request would have it."""
    name = body["lora_name"]
    if path == _UNLOAD:
        return name not in loaded
    return name in loaded and loaded[name] in (None, body["lora_path"])


def _body(name: str, path: str) -> dict[str, str]:
    return {"lora_name": name, "lora_path": path}


def _reason(reply: Reply | NoReply) -> str:
    if isinstance(reply, NoReply):
        return reply.reason
    without_route = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
    return NO_ROUTE if reply.status in without_route and b'"message"' not in reply.body else error_message(reply.body)
