"""All settings, each with its type, default and meaning. `docs/configuration.md` is generated from here.

The larger parts have files of their own beside this one. `sources.py` reads them from flags, environment and file.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from gateway.admission.policy import LAST_BAND
from gateway.config.adapter import AdapterSettings
from gateway.config.admission import AdmissionSettings
from gateway.config.auth import AuthSettings
from gateway.config.discovery import DiscoverySettings
from gateway.config.endpoint import EndpointSettings
from gateway.config.engine import EngineSettings, host_of
from gateway.config.fallback import FallbackSettings, misdirected
from gateway.config.fields import UNIX, OptionalTokens, Port, Seconds, Section, unix_socket
from gateway.config.tier import TierSettings


def _host(host: str) -> str:
    return unix_socket(host) if host.strip().startswith(UNIX) else host


def _mode(mode: str) -> str:
    if not _MODE.fullmatch(mode):
        raise ValueError('expected the mode of a file, in quotes, as "660"')
    return mode


_MODE = re.compile("0?[0-7]{3}")


def _origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("expected an origin, as https://chat.example.com or http://localhost:3000, or `*` for any")
    return origin.lower()


_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+|\*")


class ServerSettings(Section):
    """The addresses kvgate listens on, and the limits on its clients."""

    host: Annotated[str, AfterValidator(_host)] = Field(
        "0.0.0.0",
        description="Address to listen on, or a unix socket for clients, as `unix:/run/kvgate/kvgate.sock`: then "
        "`port` is not used, and `admin_port` is one of 127.0.0.1.",
    )
    port: Port = Field(8080, description="Port for clients; 0 takes a free one.")
    admin_port: Port | None = Field(
        None, description="A separate port for `/metrics` and `/kvgate/*`, which then leave the main port."
    )
    socket_mode: Annotated[str, AfterValidator(_mode)] = Field(
        "660", description="Who may connect to the unix socket, as the file mode that it gets."
    )
    tls_cert: Path | None = Field(
        None,
        description="Certificate (PEM, with those that lead to its CA) for clients, who then use https; also on "
        "`admin_port`.",
    )
    tls_key: Path | None = Field(None, description="Its key (PEM, without a password).")
    workers: Annotated[int, Field(gt=0)] | Literal["auto"] = Field(
        1,
        description="Processes that read, count and stream requests. With more than one, or engines on demand, another "
        "process decides for all of them. `auto`: one for each core but one. Limits on connections, bodies and "
        "relayed requests are for all together.",
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
    allowed_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        (),
        description="Origins of the web pages that may use the routes of clients from a browser, as vLLM's "
        "`--allowed-origins`; `*` lets in every page that somebody here opens. Never for the admin routes.",
        examples=[["https://chat.example.com"]],
    )
    trusted_flow_header: str | None = Field(
        None, description="Header in which a trusted proxy names the flow; without it, the key's name or the address."
    )
    trusted_objectives: dict[str, Annotated[int, Field(ge=0, le=LAST_BAND)]] = Field(
        {},
        description="The priority bands of the objectives that a trusted proxy names in `x-llm-d-inference-objective` "
        "(earlier `x-gateway-inference-objective`): the most urgent that such a request may take. Not for clients "
        "with keys, which have a `priority`.",
        examples=[{"batch": 2}],
    )

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("`tls_cert` and `tls_key` go together: give both or none")
        if self.tls_cert is not None and self.unix is not None:
            raise ValueError("`tls_cert` goes with an address in `host`: nobody can listen in on a unix socket")
        return self

    @property
    def where(self) -> int | str:
        """The port, or the unix socket, that clients use."""
        return self.port if self.unix is None else self.host

    @property
    def unix(self) -> Path | None:
        """Path of the unix socket that clients use; None where they use `port`."""
        return Path(self.host.removeprefix(UNIX)) if self.host.startswith(UNIX) else None


class ModelSettings(Section):
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
    default_max_tokens: int | None = Field(
        None,
        gt=0,
        description="Output limit of requests that have none, where a full KV cache fails all that runs "
        "(llama-server): there a request holds its limit from its start. Where not given: the context divided by the "
        "slots, less the prompt, but at least a quarter of a slot's part.",
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
    engine: EngineSettings | None = Field(None, description="An engine to launch.", examples=[{"model": "owner/name"}])
    lora: tuple[AdapterSettings, ...] = Field(
        (),
        description="LoRA adapters that each engine of this model has. One that runs already must let them be loaded.",
        examples=[[{"name": "sql", "path": "/models/sql-lora"}]],
    )
    lora_flows: bool = Field(
        False, description="Whether each adapter is a flow of its own, for clients that have no key of their own."
    )
    fallbacks: tuple[FallbackSettings, ...] = Field(
        (),
        description="What answers requests that say `x-kvgate-fallback: allow` where this model cannot in time or in "
        "length, the first that takes them: other models by their `name`, or servers elsewhere.",
        examples=[["other-model"]],
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not self.endpoints and not self.discover and self.engine is None:
            raise ValueError("a model needs `endpoints`, `discover` or an `engine`")
        return self

    @model_validator(mode="after")
    def _distinct_adapters(self) -> Self:
        names = [adapter.name for adapter in self.lora]
        if twice := sorted({name for name in names if names.count(name) > 1 or name == self.known_as}):
            raise ValueError(f"each adapter needs a name of its own: {', '.join(twice)}")
        return self

    @property
    def known_as(self) -> str | None:
        """Its name as far as the settings say it."""
        return self.name or (None if self.engine is None else self.engine.model)


class CountingSettings(Section):
    """The pool that renders and tokenizes."""

    threads: int = Field(2, ge=1, le=64, description="Threads for ordinary bodies.")
    processes: int = Field(1, ge=0, le=64, description="Processes for large bodies; 0 counts those in threads too.")
    process_bytes: int = Field(64 * 2**10, gt=0, description="A body from this size on is counted in a process.")
    max_pending_bytes: int = Field(
        256 * 2**20,
        gt=0,
        description="Most bytes that wait to be counted; one flow may have at most half of what the others leave.",
    )
    hand_over_from: OptionalTokens = Field(
        500,
        description="Prompts of conversations from this many tokens on are sent with the token ids that were counted, "
        "to engines that take them (vLLM 0.29 and newer), which then do not render and tokenize them again. `none` "
        "sends no ids.",
    )


class HealthSettings(Section):
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


class UpstreamSettings(Section):
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


class LogSettings(Section):
    """The log, written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level shown.")
    format: Literal["auto", "json", "console"] = Field("auto", description="`auto`: console on a terminal, else JSON.")
    access: bool = Field(True, description="One line for each request.")


class Settings(Section):
    """All settings."""

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
        addresses += [model.engine.at for model in models if model.engine is not None and model.engine.at is not None]
        if twice := sorted({address for address in addresses if addresses.count(address) > 1}):
            raise ValueError(f"two endpoints cannot share an address: {', '.join(twice)}")
        if twice := sorted({one.name for model in models for one in model.lora} & {model.known_as for model in models}):
            raise ValueError(f"an adapter cannot have the name of a model: {', '.join(twice)}")
        if faults := [*misdirected((model.known_as, model.fallbacks) for model in models)]:
            raise ValueError("; ".join(faults))
        return models

    def launches(self, model: ModelSettings) -> bool:
        """Whether this gateway launches the engine of a model: in a tier the gateway at its address does."""
        if model.engine is None or model.engine.at is None or self.tier.advertise is None:
            return model.engine is not None
        return host_of(model.engine.at) == host_of(self.tier.advertise)

    @property
    def awaits_endpoints(self) -> bool:
        """Whether no endpoint of a model was found so far."""
        return any(model.discover and not model.endpoints for model in self.models)
