"""PURE. The settings that a reload (SIGHUP, `kvgate reload`) changes live, and what must restart for the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.config.admission import AdmissionSettings
from gateway.config.discovery import DiscoverySettings
from gateway.config.endpoint import EndpointSettings
from gateway.config.engine import EngineSettings
from gateway.config.settings import ModelSettings, Settings


class Needs(StrEnum):
    """The condition for a changed setting to be in force."""

    NOTHING = "live"
    """Nothing: it is in force at once, also for waiting requests."""
    PROCESS = "new process"
    """Another gateway process. With engines of its own kvgate replaces it by itself; otherwise restart kvgate."""
    RESTART = "restart"
    """A restart of kvgate, which binds its addresses once."""
    ENGINE = "new engine"
    """The replacement of the model's engines, or more or fewer of them."""
    NEXT_ENGINE = "next engine"
    """The next engine that replaces this one."""


_TABLE: Mapping[Needs, tuple[str, ...]] = {
    Needs.NOTHING: (
        *("server.max_body_bytes", "server.max_header_bytes", "server.body_timeout", "server.shutdown_timeout"),
        *("server.body_min_rate", "server.max_connections", "server.trusted_flow_header"),
        *("server.trusted_objectives", "server.allowed_origins"),
        *("server.tls_cert", "server.tls_key"),
        *("models[].endpoints[].url", "models[].endpoints[].api_key", "models[].endpoints[].api_key_file"),
        *("models[].endpoints[].tls.verify", "models[].endpoints[].tls.ca_file"),
        *("models[].endpoints[].tls.cert_file", "models[].endpoints[].tls.key_file"),
        *("models[].endpoints[].max_num_seqs", "models[].endpoints[].kv_tokens"),
        *("models[].endpoints[].kind", "models[].endpoints[].max_model_len"),
        *("models[].fallbacks[].model", "models[].fallbacks[].url", "models[].fallbacks[].api_key_file"),
        *("models[].default_max_tokens", "models[].lora[].name", "models[].lora[].path", "models[].lora_flows"),
        *("counting.process_bytes", "counting.max_pending_bytes", "counting.hand_over_from"),
        *("health.timeout", "health.failures", "health.hung_after"),
        *("upstream.connect_timeout", "upstream.first_byte_timeout", "upstream.idle_timeout", "upstream.keepalive"),
        *("upstream.relay_concurrency", "upstream.retry_share"),
        *("auth.keys[].name", "auth.keys[].key", "auth.keys[].key_file", "auth.keys[].key_sha256"),
        *("auth.keys[].priority", "auth.keys[].weight", "auth.keys[].models"),
        *("auth.keys[].limits.requests_per_minute", "auth.keys[].limits.tokens_per_minute"),
        *("auth.keys[].limits.concurrent", "auth.keys[].limits.kv_share", "auth.keys[].limits.max_tokens"),
        *("auth.admin_key", "auth.admin_key_file"),
    ),
    Needs.PROCESS: (
        *("models[].name", "models[].tokenizer", "models[].chat_template", "models[].trust_remote_code"),
        *("server.state_dir", "admission.event_log"),
        *("counting.threads", "counting.processes"),
        *("models[].engine.idle_stop", "models[].engine.group"),
        "health.interval",
        *("tier.redis", "tier.advertise", "tier.key_file", "tier.members", "tier.fallback_share"),
        *("log.level", "log.format", "log.access"),
    ),
    Needs.RESTART: ("server.host", "server.socket_mode", "server.port", "server.admin_port", "server.workers"),
    Needs.ENGINE: (
        *("models[].engine.model", "models[].engine.replicas", "models[].engine.gpus", "models[].engine.share_gpu"),
        *("models[].engine.args", "models[].engine.env", "models[].engine.python"),
        *("models[].engine.llama_server", "models[].engine.choice", "models[].engine.alternatives"),
        *("models[].engine.quality", "models[].engine.on_demand", "models[].engine.idle", "models[].engine.at"),
    ),
    Needs.NEXT_ENGINE: (
        *("models[].engine.fit", "models[].engine.min_model_len", "models[].engine.start_timeout"),
        *("models[].engine.stop_timeout", "models[].engine.max_restarts", "models[].engine.hung_timeout"),
        "models[].engine.reload",
    ),
}
"""Settings by need. One of `admission` that is not named here is live, and all of `models[].discover`."""
ANSWER = "settings"
"""The prefix of a gateway's answer to new settings. What is wrong with them follows."""
FIXED = tuple(path.removeprefix("server.") for path in _TABLE[Needs.RESTART])
_OF_POOL = ("name", "tokenizer", "chat_template", "trust_remote_code")
"""Settings of a model that are fixed when its pool is made."""
_LIVE = ("default_max_tokens", "lora", "lora_flows", "fallbacks")
"""Settings of a model that are read at each use."""
_ENTRY: Mapping[Any, str] = {tuple: "[]", dict: ".N"}
"""The marks in a setting's name for an entry of a list, and for a section by number."""


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """A change of settings.

    Attributes:
        settings: the settings in force afterwards. Those that cannot change yet keep their values.
        live: names of the settings in force at once.
        later: names of the other changed settings, and their needs.
    """

    settings: Settings
    live: tuple[str, ...]
    later: Mapping[str, Needs]

    @classmethod
    def between(cls, before: Settings, after: Settings) -> "SettingsChange":
        """Split the differences into those that apply at once and the others."""
        found: dict[str, Needs] = {}
        merged = _merged(before, after, "", found)
        models = _models(before.models, after.models, found)
        settings = after.model_copy(update={**merged, "models": models})
        live = tuple(name for name, needs in found.items() if needs is Needs.NOTHING)
        return cls(settings, live, {name: needs for name, needs in found.items() if needs is not Needs.NOTHING})

    def told(self, *, launches: bool = False) -> list[str]:
        """The messages about settings that did not change, from a lone gateway or a kvgate that launches engines."""
        said = _SAID_OF_ENGINES if launches else _SAID
        return [f"{name}: {said[needs]}" for name, needs in self.later.items() if needs in said]


_SAID: Mapping[Needs, str] = dict.fromkeys(Needs, "needs a restart")
_SAID_OF_ENGINES: Mapping[Needs, str] = {
    Needs.RESTART: "needs a restart",
    Needs.NEXT_ENGINE: "is for the next engine that takes this one's place",
}
"""kvgate carries out the others itself."""


def every(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting of a section, by its name: `admission.kv_high`, `auth.keys[].weight`."""
    for name, field in section.model_fields.items():
        inner = inner_section(field.annotation)
        key = f"{prefix}{name}"
        if inner is None:
            yield key, field
        else:
            yield from every(inner, f"{key}{_ENTRY.get(get_origin(field.annotation), '')}.")


def inner_section(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting's type is, or holds; None for a value."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


NEEDS: Mapping[str, Needs] = {
    **{path: Needs.NOTHING for path, _ in every(AdmissionSettings, "admission.")},
    **{path: Needs.NOTHING for path, _ in every(DiscoverySettings, "models[].discover[].")},
    **{path: needs for needs, paths in _TABLE.items() for path in paths},
}
"""The need of every setting, by its name as `every` writes it."""


def _merged(before: BaseModel, after: BaseModel, prefix: str, found: dict[str, Needs]) -> dict[str, Any]:
    """The old values of those settings in a section that cannot change. Notes every difference in `found`."""
    kept: dict[str, Any] = {}
    for name in type(after).model_fields:
        old, new, key = getattr(before, name), getattr(after, name), f"{prefix}{name}"
        if old == new or key == "models":
            continue
        if isinstance(new, BaseModel):
            kept[name] = new.model_copy(update=_merged(old, new, f"{key}.", found))
            continue
        found[key] = _needs(key)
        if found[key] is not Needs.NOTHING:
            kept[name] = old
    return kept


def _needs(key: str) -> Needs:
    """The need of a setting, or of a whole list of sections, whose settings all need the same."""
    (needs,) = {NEEDS[path] for path in NEEDS if path == key or path.startswith((f"{key}[].", f"{key}.N."))}
    return needs


def _models(
    before: tuple[ModelSettings, ...], after: tuple[ModelSettings, ...], found: dict[str, Needs]
) -> tuple[ModelSettings, ...]:
    """The models, with the old values of settings that cannot change yet."""
    models = []
    for number, model in enumerate(after):
        key = f"models[{number}]"
        was = _was(before, model)
        kept: dict[str, Any] = {}
        engine = None if was is None else was.engine
        if model.engine != engine:
            found.update(_of_engine(engine, model.engine, f"{key}.engine"))
            kept["engine"] = engine
        for name in _OF_POOL if was is not None else ():
            if getattr(model, name) != getattr(was, name):
                found[f"{key}.{name}"] = Needs.PROCESS
                kept[name] = getattr(was, name)
        merged = model.model_copy(update=kept)
        if merged.endpoints or merged.discover or merged.engine is not None:
            models.append(merged)
    if _endpoints(before) != _endpoints(after):
        found["models[].endpoints"] = Needs.NOTHING
    for name in _LIVE:
        if _values(before, name) != _values(after, name):
            found[f"models[].{name}"] = Needs.NOTHING
    if _sources(before) != _sources(after):
        found["models[].discover"] = Needs.NOTHING
    return tuple(models)


def _was(before: tuple[ModelSettings, ...], model: ModelSettings) -> ModelSettings | None:
    """The entry that was the same model: by name, else by a source of endpoints, by an endpoint, or by the engine.

    A name comes first: an endpoint may be for another model from now on.
    """
    named = [old for old in before if model.name is not None and old.name == model.name]
    likenesses = (_found_alike, _reached_alike, _known_alike)
    return next((old for alike in likenesses for old in named or before if alike(old, model)), None)


def _found_alike(old: ModelSettings, new: ModelSettings) -> bool:
    return bool({*old.discover} & {*new.discover})


def _reached_alike(old: ModelSettings, new: ModelSettings) -> bool:
    return bool({endpoint.address for endpoint in old.endpoints} & {endpoint.address for endpoint in new.endpoints})


def _known_alike(old: ModelSettings, new: ModelSettings) -> bool:
    if old.name is not None or new.name is not None:
        return old.name == new.name
    return old.engine is not None and new.engine is not None and old.engine.model == new.engine.model


def _of_engine(before: EngineSettings | None, after: EngineSettings | None, key: str) -> dict[str, Needs]:
    if before is None or after is None:
        return {key: Needs.ENGINE}
    names = [name for name in type(after).model_fields if getattr(before, name) != getattr(after, name)]
    return {f"{key}.{name}": NEEDS[f"models[].engine.{name}"] for name in names}


def _endpoints(models: tuple[ModelSettings, ...]) -> dict[str, EndpointSettings]:
    return {endpoint.address: endpoint for model in models for endpoint in model.endpoints}


def _values(models: tuple[ModelSettings, ...], name: str) -> list[Any]:
    return [value for model in models if (value := getattr(model, name))]


def _sources(models: tuple[ModelSettings, ...]) -> list[DiscoverySettings]:
    return [source for model in models for source in model.discover]
