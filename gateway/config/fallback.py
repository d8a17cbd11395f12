"""The settings of fallbacks: other models that may answer in the place of one."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from gateway.config.endpoint import BaseUrl, EndpointSettings
from gateway.config.fields import Section, is_loopback


class FallbackSettings(Section):
    """A model that answers in the place of this one: another one here, or one of a server elsewhere."""

    model: str | None = Field(
        None, description="The other model's `name`; at `url` its name there, the client's own where not given."
    )
    url: BaseUrl | None = Field(
        None,
        description="Base URL of the server elsewhere: https, or http of this machine.",
        examples=["https://api.example.com"],
    )
    api_key_file: Path | None = Field(
        None,
        description="File that holds the key for `url`, which only a server on this machine may do without. A client's "
        "own key is never sent there.",
    )

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, given: Any) -> Any:
        """Accept the name or the URL alone."""
        if not isinstance(given, str):
            return given
        return {"url": given} if "://" in given else {"model": given}

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.url is None:
            if self.model is None:
                raise ValueError("a fallback needs a `model`, a `url`, or both")
            if self.api_key_file is not None:
                raise ValueError(f"`api_key_file` is for a `url`: the endpoints of {self.model!r} have their own keys")
            return self
        if is_loopback(self.url.host):
            return self
        if self.url.scheme != "https":
            raise ValueError(f"prompts and a key would go to {self.url.host} in the clear: expected https")
        if self.api_key_file is None:
            raise ValueError(
                f"{self.url.host} needs a key of its own, as clients' keys are not sent there: give "
                "{url: ..., api_key_file: ...}"
            )
        return self

    @property
    def elsewhere(self) -> EndpointSettings | None:
        """The server elsewhere; None for a model here."""
        if self.url is None:
            return None
        return EndpointSettings.model_validate({"url": str(self.url), "api_key_file": self.api_key_file})


def misdirected(models: Iterable[tuple[str | None, tuple[FallbackSettings, ...]]]) -> Iterator[str]:
    """What is wrong with the fallbacks of these models, given as name and fallbacks: one sentence for each fault.

    Two models that were each other's fallback would hand their overload back and forth.
    """
    after: dict[str, list[str]] = {}
    for name, fallbacks in models:
        mine = after.setdefault(name or "", [])
        mine += [other.model for other in fallbacks if other.url is None and other.model is not None]
    for name, others in after.items():
        of = f"of {name!r}" if name else "of a model without a `name`"
        for other in others:
            if other not in after:
                known = ", ".join(repr(one) for one in after if one) or "none has one"
                yield f"the fallback {other!r} {of} is no model here; by `name` there are: {known}"
    yield from (
        f"{' > '.join(repr(one) for one in circle)}: a model cannot be its own fallback, not through others either"
        for circle in _circles(after)
    )


def _circles(after: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Each circle once, from its first model on."""
    found: set[frozenset[str]] = set()

    def walk(path: list[str]) -> Iterator[list[str]]:
        for other in after.get(path[-1], ()):
            if other in path:
                circle = path[path.index(other) :]
                if frozenset(circle) not in found:
                    found.add(frozenset(circle))
                    yield [*circle, other]
            else:
                yield from walk([*path, other])

    for name in after:
        yield from walk([name])
