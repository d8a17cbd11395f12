"""The settings of keys and of their tenants' limits."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from gateway.admission.limits.limit import Limits
from gateway.admission.policy import LAST_BAND
from gateway.config.fields import Key, Section


class LimitSettings(Section):
    """The limits of a tenant: of all keys of one name, over all models."""

    requests_per_minute: int | None = Field(
        None, gt=0, description="Requests; up to a minute's worth at once. Beyond it 429 `rate_limit_exceeded`."
    )
    tokens_per_minute: int | None = Field(
        None,
        gt=0,
        description="Prompt tokens, charged by kvgate's count on arrival, and output tokens, charged at the end by the "
        "engine's; a prompt that is only estimated is charged at the end, too. What goes over it is paid by the next "
        "requests. Of embeddings and others that are passed on, all tokens are charged at the end.",
    )
    concurrent: int | None = Field(None, gt=0, description="Most requests that wait or run at once.")
    kv_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Most of each model's KV cache, 0 to 1, that its requests may hold at their expected ends; what "
        "would go over it waits for one of them to end. A prompt over it gets 429; an answer that may grow over it "
        "runs alone.",
    )
    max_tokens: int | None = Field(
        None,
        gt=0,
        description="Most output tokens of a sequence. A request that asks for more gets 400; for one that sets none "
        "kvgate sets this.",
    )

    def of_core(self) -> Limits:
        """Those that are kept by the owner of the decisions."""
        return Limits(self.requests_per_minute, self.tokens_per_minute, self.concurrent)


class ClientKey(Section):
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


class AuthSettings(Section):
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
        weights, limits, kv_shares = self.weights, self.limits, self.kv_shares
        for key in self.keys:
            if (weight := weights[key.name]) != key.weight:
                raise ValueError(
                    f"keys of one name are one tenant, and {key.name!r} has weights {key.weight} and {weight}"
                )
            its = key.limits
            if limits.get(key.name, Limits()) != its.of_core() or kv_shares.get(key.name) != its.kv_share:
                raise ValueError(f"keys of one name are one tenant, and {key.name!r} has different limits")
        return self

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each flow with a key."""
        return {key.name: key.weight for key in self.keys}

    @property
    def kv_shares(self) -> dict[str, float]:
        """The share of each model's KV cache of each tenant that has one."""
        return {key.name: share for key in self.keys if (share := key.limits.kv_share) is not None}

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each tenant that has some."""
        return {key.name: its for key in self.keys if (its := key.limits.of_core()) != Limits()}
