"""The settings of a tier of gateways."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.config.fields import HostAndPort, Section, Share
from gateway.config.redis_url import redis_address


def _redis(url: SecretStr) -> SecretStr:
    redis_address(url.get_secret_value())
    return url


class TierSettings(Section):
    """The gateways of several machines, of which one decides for all; without `redis` this one is alone."""

    redis: Annotated[SecretStr, AfterValidator(_redis)] | None = Field(
        None,
        description="URL of the Redis or Valkey by which the gateways agree who decides: `redis://host:6379/0`, "
        "`rediss://` with TLS, `redis+sentinel://host:26379,host2:26379/service`. It may hold a user and a password. "
        "Each tier needs a database of its own.",
        examples=["redis://redis:6379/0"],
    )
    advertise: HostAndPort | None = Field(
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
