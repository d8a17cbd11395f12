"""The settings of admission, and the core's policy made of them."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gateway.admission.policy import LAST_BAND, Band, Bounds, Mode, Policy
from gateway.config.fields import OptionalSeconds, Seconds, Section, Share


class QueueSettings(Section):
    """The limits on waiting requests, and on their time."""

    max_requests: int = Field(2048, ge=0, description="Most requests that wait, per model.")
    max_bytes: int = Field(
        2 * 2**30,
        gt=0,
        description="Most bytes of waiting bodies, per model; also of all bodies over 64 KB, from their first byte "
        "until their answer begins: of these, one flow gets at most half of what the others leave.",
    )
    ttl: Seconds = Field(60.0, description="Longest wait while an endpoint that takes it is live; then 429.")
    no_endpoint_ttl: Seconds = Field(60.0, description="Longest wait while none is; then 503.")
    heartbeat: Seconds | None = Field(
        None,
        description="Interval of SSE comments to a waiting streaming client, with its position in the queue and the "
        "predicted wait (`: kvgate position=3 eta=2.1`). The first one fixes the status at 200: a later refusal is "
        "then an error event in the stream. Off by default.",
    )


class BandSettings(Section):
    """The promises to one priority band."""

    ttft_target: Seconds | None = Field(
        None, description="The target of priority band N (0 is the most urgent), in place of `admission.ttft_target`."
    )
    reserved: float = Field(
        0.0, ge=0, lt=1, description="Share of service it gets while requests wait in it; under 1 over all bands."
    )


class AdmissionSettings(Section):
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

    def to_policy(
        self, *, weights: Mapping[str, float], kv_shares: Mapping[str, float], poll_interval: float
    ) -> Policy:
        """The same as the core's policy, whose fields have the names of the settings, here or in `queue`.

        Args:
            weights: by flow, where set.
            kv_shares: by flow, where set.
            poll_interval: seconds between two scrapes of an endpoint.
        """
        of_core = {field.name for field in fields(Policy)}
        equal = {name: value for name, value in (*self.queue, *self) if name in of_core}
        others = {
            "mode": Mode(self.mode),
            "bounds": Bounds(self.policy),
            "bands": {number: Band(**dict(band)) for number, band in self.bands.items()},
            "weights": weights,
            "kv_shares": kv_shares,
            "poll_interval": poll_interval,
        }
        return Policy(**{**equal, **others})
