"""Every setting, with its type, default and meaning. `docs/configuration.md` is generated from here.

`sources.py` reads them from flags, environment and file.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.admission.limits.standing import Limits
from gateway.admission.policy import LAST_BAND, Band, Bounds, Mode, Policy
from gateway.config.redis_url import redis_address

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OptionalSeconds = Annotated[Seconds | None, BeforeValidator(lambda value: None if value == "none" else value)]
"""Null in the environment and on the command line, which have none of their own."""
Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]


def usable_key(text: str) -> str:
    """The key as sent, without surrounding white space.

    Raises:
        ValueError: the key is empty, which would let everybody in, or cannot stand in a header.
    """
    key = text.strip()
    if not key:
        raise ValueError("expected a key, this one is empty")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("expected a key of one line of ASCII characters")
    return key


Key = Annotated[SecretStr, AfterValidator(lambda key: SecretStr(usable_key(key.get_secret_value())))]


_API_PATH = re.compile(r"(?<=[^/:])/+v1(?:/+(?P<more>[^?#]+)|/*)$")
"""The part of a URL from `/v1` on."""
_USER = re.compile(r"//.*@")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ServerSettings(_Section):
    """The addresses kvgate listens on, and the limits on its clients."""

    host: str = Field("0.0.0.0", description="Address to listen on.")
    port: Port = Field(8080, description="Port for clients; 0 takes a free one.")
    admin_port: Port | None = Field(
        None, description="A separate port for `/metrics` and `/kvgate/*`, which then leave the main port."
    )
    workers: Annotated[int, Field(gt=0)] | Literal["auto"] = Field(
        1,
        description="Processes that read, count and stream requests. With more than one, another process decides for "
        "all of them. `auto`: one for each core but one. Limits on connections, bodies and relayed requests are for "
        "all together.",
    )
    max_body_bytes: int = Field(32 * 2**20, gt=0, description="A larger body is refused with 413.")
    max_header_bytes: int = Field(64 * 2**10, gt=0, description="Larger headers are refused with 431.")
    max_connections: int | None = Field(
        None,
        gt=0,
        description="Most connections of clients at once; a further one takes the place of one that is idle, or is "
        "answered with 503 and closed. Where not given, a third of the file descriptors the process may have.",
    )
    body_timeout: Seconds = Field(30.0, description="Longest silence while a client sends its headers or body.")
    body_min_rate: int = Field(
        16 * 2**10,
        gt=0,
        description="Least average rate of a body in bytes per second, over any `body_timeout`: 10 MB may take "
        "11 minutes. A client must also read the answer to a relayed request (embeddings and such) at this rate.",
    )
    shutdown_timeout: Seconds = Field(120.0, description="How long running streams may go on after SIGTERM.")
    state_dir: Path | Literal["auto", "none"] = Field(
        "auto",
        description="Folder for what kvgate keeps between starts: past output lengths, without text or names of "
        "clients. `auto`: systemd's `StateDirectory`, else `kvgate` in `$XDG_STATE_HOME` or `~/.local/state`; `none` "
        "keeps nothing.",
    )
    trusted_flow_header: str | None = Field(
        None, description="Header in which a trusted proxy names the flow; without it, the key's name or the address."
    )


class TlsSettings(_Section):
    """The trust in an endpoint's certificate."""

    verify: bool = Field(True, description="False accepts any certificate.")
    ca_file: Path | None = Field(None, description="CA bundle to trust instead of the system's.")
    cert_file: Path | None = Field(None, description="Client certificate (PEM).")
    key_file: Path | None = Field(None, description="Key of the client certificate (PEM).")


def _as_pasted(url: object) -> object:
    """Accept the URL people have at hand: the `base_url` of their clients."""
    if not isinstance(url, str):
        return url
    url = url.strip()
    if "://" not in url:
        raise ValueError(f"expected a URL with its scheme, as http://{url.rpartition('@')[2]}")
    if (found := _API_PATH.search(url)) is None:
        return url
    if found["more"]:
        base = _USER.sub("//", url[: found.start()])
        raise ValueError(f"expected the base URL, {base}: kvgate adds the paths that are asked for")
    return url[: found.start()]


def _plain(url: HttpUrl) -> HttpUrl:
    if url.username is not None or url.password is not None:
        raise ValueError("expected no user or password: give `api_key`")
    if url.query is not None or url.fragment is not None:
        raise ValueError("expected a base URL, without `?` and `#`")
    return url


BaseUrl = Annotated[HttpUrl, BeforeValidator(_as_pasted), AfterValidator(_plain)]


class _Reached(_Section):
    """How an endpoint is used, wherever its address comes from."""

    api_key: Key | None = Field(None, description="Sent to the endpoint as a bearer token.")
    api_key_file: Path | None = Field(None, description="File that holds the endpoint's key.")
    tls: TlsSettings = Field(default_factory=TlsSettings, description="TLS towards the endpoint.")
    max_num_seqs: int | None = Field(None, gt=0, description="Its sequence limit; learned where not given.")
    kv_tokens: int | None = Field(None, gt=0, description="Its KV cache in tokens; read from it where not given.")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give at most one of `api_key` and `api_key_file`")
        return self


class EndpointSettings(_Reached):
    """A vLLM server that already runs."""

    url: BaseUrl = Field(description="Base URL; a `/v1` at its end is taken off.", examples=["http://127.0.0.1:8000"])

    @property
    def address(self) -> str:
        """Its host and port, its name in logs, metrics and the admin API."""
        return urlsplit(str(self.url)).netloc


def _is_name(url: HttpUrl) -> HttpUrl:
    host = (url.host or "").strip("[]")
    if _is_address(host):
        raise ValueError(f"expected a name, and {host} is an address: it goes to `endpoints`")
    return url


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _service(name: str) -> str:
    """An SRV name with its scheme."""
    name = name.strip()
    if not _SRV.fullmatch(name):
        raise ValueError(
            "expected the name of SRV records, as _vllm._tcp.example.org or https://_vllm._tcp.example.org"
        )
    return name if "://" in name else f"http://{name}"


_SRV = re.compile(r"(https?://)?[\w-]+(\.[\w-]+)*\.?")


def _server(text: str) -> str:
    """The address of a name server, with its port."""
    found = _SERVER.fullmatch(text.strip())
    host = found["six"] or found["four"] if found is not None else ""
    if found is None or not _is_address(host):
        raise ValueError("expected the address of a name server, as 127.0.0.1:8600 or [::1]:53")
    return text.strip() if found["port"] else f"{text.strip()}:{_DNS_PORT}"


_SERVER = re.compile(r"(\[(?P<six>[^]]+)\]|(?P<four>[^:]+))(:(?P<port>\d{1,5}))?")
_DNS_PORT = 53


class DiscoverySettings(_Reached):
    """A source of endpoints that come and go. Its other settings are those of every endpoint found there."""

    dns: Annotated[BaseUrl, AfterValidator(_is_name)] | None = Field(
        None,
        description="URL with a name of which every address is an endpoint: its A records, or AAAA where it has none. "
        "A name server is asked, and no `/etc/hosts`. With https the certificate must name the address.",
        examples=["http://vllm-headless.default.svc.cluster.local:8000"],
    )
    srv: Annotated[str, AfterValidator(_service)] | None = Field(
        None,
        description="Name of SRV records, each with the host and port of an endpoint; `https://` before it for TLS. "
        "Priority and weight are not used.",
        examples=["_vllm._tcp.example.org"],
    )
    file: Path | None = Field(
        None,
        description="YAML or JSON file with a list of endpoints: URLs, or entries as in `endpoints`. Read again when "
        "it changes.",
    )
    nameserver: Annotated[str, AfterValidator(_server)] | None = Field(
        None, description="Address of the name server; the system's where not given.", examples=["127.0.0.1:8600"]
    )
    interval: Seconds = Field(
        10.0,
        description="Longest time until DNS is asked again; sooner where a record's TTL (at least 1 s) is shorter.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.dns, self.srv, self.file)) != 1:
            raise ValueError("give exactly one of `dns`, `srv` and `file`")
        if self.file is not None and self.nameserver is not None:
            raise ValueError("`nameserver` goes with `dns` or `srv`")
        return self

    @property
    def name(self) -> str:
        """What logs call it."""
        return str(self.dns or self.srv or self.file).rstrip("/")

    def endpoint(self, **given: object) -> EndpointSettings:
        """An endpoint found there; what is `given` goes before the settings of the source.

        Raises:
            ValidationError: something is wrong with it.
        """
        common: dict[str, object] = {name: getattr(self, name) for name in _Reached.model_fields}
        if not given.keys().isdisjoint(_KEYS):
            common = {name: value for name, value in common.items() if name not in _KEYS}
        return EndpointSettings.model_validate({**common, **given})


_KEYS = frozenset({"api_key", "api_key_file"})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _words(args: Sequence[object]) -> list[object]:
    """Arguments as words of a command line, from YAML's values."""
    words: list[object] = []
    for value in args:
        before = words[-1] if words else None
        if isinstance(value, bool):
            if not isinstance(before, str) or not before.startswith("--") or "=" in before:
                raise ValueError("`true` and `false` go after a switch, as [--enable-prefix-caching, false]")
            if not value:
                words[-1] = f"--no-{before.removeprefix('--')}"
        elif isinstance(value, str) and (found := _TWO_WORDS.fullmatch(value)):
            raise ValueError(f"{value!r} is two words: write [{found['flag']}, {found['value']}]")
        else:
            words.append(str(value) if _is_number(value) else value)
    return words


_TWO_WORDS = re.compile(r"(?P<flag>--[\w.-]+)\s+(?P<value>.+)", re.DOTALL)


class EngineSettings(_Section):
    """A vLLM that kvgate launches."""

    model: str = Field(description="Model folder or hub id.", examples=["owner/name"])
    replicas: int = Field(1, ge=1, le=64, description="Number of processes.")
    gpus: tuple[tuple[int, ...], ...] | None = Field(
        None,
        description="NVML indices for each replica. By default each engine of all models gets as many free GPUs, in "
        "order, as its parallel sizes in `args` require; a single engine sees all.",
        examples=[[[0], [1]]],
    )
    share_gpu: bool = Field(False, description="It may share its GPUs with other engines that set this too.")
    args: tuple[str, ...] = Field(
        (),
        description="Further arguments of vLLM's server, as on its command line. `true` after a switch sets it, "
        "`false` its `--no-`.",
        examples=[["--max-model-len", 2048]],
    )
    env: dict[str, SecretStr] = Field(
        default_factory=dict, description="Further environment of the process.", examples=[{"HF_HUB_OFFLINE": 1}]
    )
    fit: Literal["auto", "off"] = Field(
        "auto",
        description="`auto` starts an engine that failed for memory again with less, at most three times, and says "
        "what was lowered; what `args` gives stays.",
    )
    min_model_len: int | None = Field(
        None,
        gt=0,
        description="The shortest context (tokens) that `fit: auto` may set; by default it never shortens.",
    )
    python: Path | None = Field(None, description="Interpreter that has vllm; kvgate's own environment if not given.")
    start_timeout: Seconds = Field(1800.0, description="Longest time from launch to healthy.")
    stop_timeout: Seconds = Field(30.0, description="From SIGTERM to SIGKILL of its process group.")
    max_restarts: int = Field(5, ge=0, description="Failures in a row before kvgate gives up on it.")
    hung_timeout: OptionalSeconds = Field(
        60.0,
        description="Time in a known hang (`health.hung_after`, several requests) or down, after which it is killed "
        "and started again; `none` leaves it.",
    )
    reload: Literal["auto", "surge", "in_place"] = Field(
        "auto",
        description="How a changed engine replaces the old one. `surge`: it is ready before the old one goes; "
        "`in_place`: the old one goes first, and requests wait; `auto`: `surge` where there is memory for both.",
    )

    @field_validator("args", mode="before")
    @classmethod
    def _as_words(cls, args: object) -> object:
        return _words(args) if isinstance(args, (list, tuple)) else args

    @field_validator("env", mode="before")
    @classmethod
    def _as_text(cls, env: object) -> object:
        if not isinstance(env, Mapping):
            return env
        return {name: str(value) if _is_number(value) else value for name, value in env.items()}

    @field_validator("fit", mode="before")
    @classmethod
    def _off_in_yaml(cls, fit: object) -> object:
        return "off" if fit is False else fit

    @model_validator(mode="after")
    def _gpus_for_each(self) -> Self:
        if self.gpus is not None and len(self.gpus) != self.replicas:
            raise ValueError(f"`gpus` names GPUs for {len(self.gpus)} replicas, and there are {self.replicas}")
        return self


class ModelSettings(_Section):
    """One model and where it runs: endpoints that run already, given or discovered, and an engine to launch."""

    name: str | None = Field(None, description="Served name; what the endpoints report where not given.")
    tokenizer: str | None = Field(
        None, description="Folder or hub id of the tokenizer; the endpoint's own `root` where not given."
    )
    chat_template: str | None = Field(
        None,
        description="File of the chat template that its engines use, as their `--chat-template`; the tokenizer's own "
        "where not given. Engines that kvgate launches are told to use it.",
    )
    trust_remote_code: bool = Field(False, description="Load tokenizer code that a model repository brings.")
    endpoints: tuple[EndpointSettings, ...] = Field(
        (), description="vLLM servers that already run.", examples=[[{"url": "http://127.0.0.1:8000"}]]
    )
    discover: tuple[DiscoverySettings, ...] = Field(
        (),
        description="Where further endpoints are found, and found to be gone.",
        examples=[[{"dns": "http://vllm-headless.default.svc.cluster.local:8000"}]],
    )
    engine: EngineSettings | None = Field(None, description="A vLLM to launch.", examples=[{"model": "owner/name"}])

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not self.endpoints and not self.discover and self.engine is None:
            raise ValueError("a model needs `endpoints`, `discover` or an `engine`")
        return self


class QueueSettings(_Section):
    """The limits on waiting requests, and on their time."""

    max_requests: int = Field(2048, ge=0, description="Most requests that wait, per model.")
    max_bytes: int = Field(
        2 * 2**30,
        gt=0,
        description="Most bytes of waiting bodies, per model; also of all bodies over 64 KB, from their first byte "
        "until their answer begins: of these, one flow gets at most half of what the others leave.",
    )
    ttl: Seconds = Field(60.0, description="Longest wait while an endpoint is live; then 429.")
    no_endpoint_ttl: Seconds = Field(60.0, description="Longest wait while none is; then 503.")
    heartbeat: Seconds | None = Field(
        None,
        description="Interval of SSE comments to a waiting streaming client. The first one fixes the status at 200: a "
        "later refusal is then an error event in the stream. Off by default.",
    )


class BandSettings(_Section):
    """The promises to one priority band."""

    ttft_target: Seconds | None = Field(
        None, description="The target of priority band N (0 is the most urgent), in place of `admission.ttft_target`."
    )
    reserved: float = Field(
        0.0, ge=0, lt=1, description="Share of service it gets while requests wait in it; under 1 over all bands."
    )


class AdmissionSettings(_Section):
    """When a request may use an endpoint's KV cache."""

    mode: Literal["enforce", "observe"] = Field(
        "enforce", description="`observe` lets everything through and counts what would have waited or been refused."
    )
    policy: Literal["hysteresis", "forecast", "both"] = Field(
        "both",
        description="The bound on the use of the KV cache: `hysteresis`, the gate of `kv_high` and `kv_low`; "
        "`forecast`, the predicted peak of all requests in flight; `both`, the forecast inside the gate.",
    )
    kv_high: Share = Field(0.90, description="The gate closes above this share of the KV cache.")
    kv_low: Share = Field(0.80, description="It opens again below this share.")
    ttft_target: OptionalSeconds = Field(
        5.0,
        description="Seconds to the first token. A request that surely cannot have it in that time is refused at once "
        "with 429, any other when its time is up; `none` lets it wait up to `queue.ttl`. A client may ask for another "
        "one with `x-kvgate-ttft-ms`.",
    )
    max_passes: int = Field(8, ge=0, description="Most smaller requests backfilled before one that does not fit.")
    bands: dict[Annotated[int, Field(ge=0, le=LAST_BAND)], BandSettings] = Field(
        default_factory=dict,
        description=f"Priority bands, by number; 0 is the most urgent, {LAST_BAND} the least.",
        examples=[{1: {"ttft_target": 30}}],
    )
    queue: QueueSettings = Field(default_factory=QueueSettings, description="The queue.")
    event_log: Path | None = Field(
        None, description="File to which the core's events and decisions are appended, for `kvgate replay`."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.kv_low >= self.kv_high:
            raise ValueError(f"kv_low ({self.kv_low}) must be below kv_high ({self.kv_high})")
        return self

    @model_validator(mode="after")
    def _leaves_a_share(self) -> Self:
        reserved = {number: band.reserved for number, band in self.bands.items() if band.reserved}
        if (total := sum(reserved.values())) >= 1:
            shares = ", ".join(f"{share:g} in band {number}" for number, share in reserved.items())
            raise ValueError(f"the bands' `reserved` come to {total:g}, and must stay under 1: {shares}")
        return self

    def to_policy(self, *, weights: Mapping[str, float], poll_interval: float) -> Policy:
        """The same as the core's policy, whose fields have the names of the settings, here or in `queue`.

        Args:
            weights: by flow, where set.
            poll_interval: seconds between two scrapes of an endpoint.
        """
        of_core = {field.name for field in fields(Policy)}
        equal = {name: value for name, value in (*self.queue, *self) if name in of_core}
        others = {
            "mode": Mode(self.mode),
            "bounds": Bounds(self.policy),
            "bands": {number: Band(**dict(band)) for number, band in self.bands.items()},
            "weights": weights,
            "poll_interval": poll_interval,
        }
        return Policy(**{**equal, **others})


class CountingSettings(_Section):
    """The pool that renders and tokenizes."""

    threads: int = Field(2, ge=1, le=64, description="Threads for ordinary bodies.")
    processes: int = Field(1, ge=0, le=64, description="Processes for large bodies; 0 counts those in threads too.")
    process_bytes: int = Field(64 * 2**10, gt=0, description="A body from this size on is counted in a process.")
    max_pending_bytes: int = Field(
        256 * 2**20,
        gt=0,
        description="Most bytes that wait to be counted; one flow may have at most half of what the others leave.",
    )


class HealthSettings(_Section):
    """The watch on an endpoint's health."""

    interval: Seconds = Field(1.0, description="Time between two scrapes of `/metrics`, and two probes of `/health`.")
    timeout: Seconds = Field(5.0, description="Longest wait for a probe's answer.")
    failures: int = Field(
        3, ge=1, description="Failed probes in a row that take a healthy endpoint out, unless tokens come meanwhile."
    )
    hung_after: Seconds = Field(
        30.0,
        description="An engine with several requests in flight counts as hung after this time without a token; up to "
        "four times as long while it is seen to work or only takes connections. A single silent request ends with 504 "
        "after that, and its engine does not count as hung.",
    )


class UpstreamSettings(_Section):
    """The connections to endpoints that carry requests."""

    connect_timeout: Seconds = Field(5.0, description="Longest time to open a connection.")
    first_byte_timeout: Seconds = Field(600.0, description="Longest time to the first event of an answer; then 504.")
    idle_timeout: Seconds = Field(300.0, description="Longest silence inside an answer.")
    keepalive: Seconds = Field(2.0, description="An idle connection is closed after this; vLLM closes after 5 s.")
    retry_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Most requests sent again after an endpoint that lives answered with an error, as a share of the "
        "model's requests in the last 10 s, and 3 a second beside; beyond it the error is passed on. 0: none is. What "
        "went down with its engine is not counted.",
    )
    relay_concurrency: int = Field(
        64, ge=1, description="Most relayed requests (embeddings and such) per model, until their answers begin."
    )


class LimitSettings(_Section):
    """The limits of a tenant: of all keys of one name, over all models. They hold for generation requests."""

    requests_per_minute: int | None = Field(
        None, gt=0, description="Requests; up to a minute's worth at once. Beyond it 429 `rate_limit_exceeded`."
    )
    tokens_per_minute: int | None = Field(
        None,
        gt=0,
        description="Prompt tokens, charged by kvgate's count on arrival, and output tokens, charged at the end by the "
        "engine's. Output that goes over it is paid by the next requests.",
    )
    concurrent: int | None = Field(None, gt=0, description="Most requests that wait or run at once.")
    max_tokens: int | None = Field(
        None,
        gt=0,
        description="Most output tokens of a sequence. A request that asks for more gets 400; for one that sets none "
        "kvgate sets this.",
    )

    def of_core(self) -> Limits:
        """Those that are kept by the owner of the decisions."""
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.concurrent)


class ClientKey(_Section):
    """A key that a client may present, and who it then is."""

    name: str = Field(description="The tenant: what logs, fairness and limits call this client.")
    key: Key | None = Field(None, description="The key itself; better by environment or file.")
    key_file: Path | None = Field(None, description="File that holds the key.")
    key_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="Its SHA-256 in hex, where the key itself is to be known to nobody but its client."
    )
    models: tuple[str, ...] | None = Field(
        None, description="Names of the models it may use, LoRA adapters by their own; all where not given."
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="The limits of its tenant.")
    priority: int = Field(
        0, ge=0, le=LAST_BAND, description="Most urgent band its requests may take; 0 is the most urgent."
    )
    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Its share of service against the other flows that wait."
    )

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if [self.key, self.key_file, self.key_sha256].count(None) != 2:  # noqa: PLR2004  # of three
            raise ValueError("give exactly one of `key`, `key_file` and `key_sha256`")
        return self


class AuthSettings(_Section):
    """The keys that give access to kvgate. Without client keys everybody has access."""

    keys: tuple[ClientKey, ...] = Field(
        (), description="Keys for clients.", examples=[[{"name": "alice", "key_file": "/run/secrets/alice"}]]
    )
    admin_key: Key | None = Field(None, description="Key for `/metrics` and `/kvgate/*`.")
    admin_key_file: Path | None = Field(None, description="File that holds the admin key.")

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.admin_key is not None and self.admin_key_file is not None:
            raise ValueError("give at most one of `admin_key` and `admin_key_file`")
        return self

    @model_validator(mode="after")
    def _one_tenant_a_name(self) -> Self:
        limits = self.limits
        for key in self.keys:
            if (weight := self.weights[key.name]) != key.weight:
                raise ValueError(
                    f"keys of one name are one tenant, and {key.name!r} has weights {key.weight} and {weight}"
                )
            if limits.get(key.name, Limits()) != key.limits.of_core():
                raise ValueError(f"keys of one name are one tenant, and {key.name!r} has different limits")
        return self

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each flow with a key."""
        return {key.name: key.weight for key in self.keys}

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each tenant that has some."""
        return {key.name: its for key in self.keys if (its := key.limits.of_core()) != Limits()}


def _redis(url: SecretStr) -> SecretStr:
    redis_address(url.get_secret_value())
    return url


def _advertised(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise ValueError("expected HOST:PORT, as 10.0.0.7:8500")
    if host in {"0.0.0.0", "[::]", "::", "*"}:
        raise ValueError("expected the address of this machine as the others reach it, not every address")
    return text.strip()


class TierSettings(_Section):
    """The gateways of several machines, of which one decides for all; without `redis` this one is alone."""

    redis: Annotated[SecretStr, AfterValidator(_redis)] | None = Field(
        None,
        description="URL of the Redis or Valkey by which the gateways agree who decides: `redis://host:6379/0`, "
        "`rediss://` with TLS, `redis+sentinel://host:26379,host2:26379/service`. It may hold a user and a password. "
        "Each tier needs a database of its own.",
        examples=["redis://redis:6379/0"],
    )
    advertise: Annotated[str, AfterValidator(_advertised)] | None = Field(
        None, description="HOST:PORT at which the other gateways reach this one.", examples=["10.0.0.7:8500"]
    )
    key_file: Path | None = Field(
        None,
        description="File with the secret that all gateways of the tier share: at least 32 characters, as "
        "`openssl rand -hex 32` writes.",
        examples=["/run/secrets/tier"],
    )
    members: int = Field(
        3, gt=0, le=64, description="How many gateways there are, for one that has not been told by Redis."
    )
    fallback_share: Share | None = Field(
        None,
        description="Share of each engine that a gateway uses when neither Redis nor the gateway that decides can be "
        "reached; 1/`members` where not given.",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        given = {"redis": self.redis, "advertise": self.advertise, "key_file": self.key_file}
        missing = [f"`{name}`" for name, value in given.items() if value is None]
        if 0 < len(missing) < len(given):
            raise ValueError(f"a tier needs {' and '.join(missing)}, too")
        return self


class LogSettings(_Section):
    """The log, written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level shown.")
    format: Literal["auto", "json", "console"] = Field("auto", description="`auto`: console on a terminal, else JSON.")
    access: bool = Field(True, description="One line for each request.")


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix="KVGATE_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    server: ServerSettings = Field(default_factory=ServerSettings, description="Listening.")
    models: tuple[ModelSettings, ...] = Field(
        (), description="Models and where they run.", examples=[[{"endpoints": [{"url": "http://127.0.0.1:8000"}]}]]
    )
    admission: AdmissionSettings = Field(default_factory=AdmissionSettings, description="Admission.")
    counting: CountingSettings = Field(default_factory=CountingSettings, description="Counting of prompts.")
    health: HealthSettings = Field(default_factory=HealthSettings, description="Health of endpoints.")
    upstream: UpstreamSettings = Field(default_factory=UpstreamSettings, description="Connections to endpoints.")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="Keys.")
    tier: TierSettings = Field(default_factory=TierSettings, description="Several gateways on several machines.")
    log: LogSettings = Field(default_factory=LogSettings, description="Logs.")

    @field_validator("models")
    @classmethod
    def _distinct(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        addresses = [endpoint.address for model in models for endpoint in model.endpoints]
        if twice := sorted({address for address in addresses if addresses.count(address) > 1}):
            raise ValueError(f"two endpoints cannot share a host and port: {', '.join(twice)}")
        return models

    @property
    def awaits_endpoints(self) -> bool:
        """Whether no endpoint of a model was found so far."""
        return any(model.discover and not model.endpoints for model in self.models)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the given values: `gateway.config.sources` merges the sources, to name the one at fault."""
        return (init_settings,)
