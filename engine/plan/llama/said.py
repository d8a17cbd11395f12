"""PURE. The checked reader of a GGUF file's own fields: a plan must hold whatever a file claims."""

from collections.abc import Mapping, Sequence

from engine.plan.gguf import Gguf, Value


class UnknownModelError(Exception):
    """A GGUF file that no server can serve, or that does not say what a plan needs. The message says which."""


class Said:
    """What a file says of its architecture."""

    def __init__(self, file: Gguf) -> None:
        self.path = str(file.path)
        self.metadata: Mapping[str, Value] = file.metadata
        self.architecture = str(file.metadata.get("general.architecture", ""))

    def has(self, key: str) -> bool:
        """Whether it says this."""
        return f"{self.architecture}.{key}" in self.metadata

    def number(self, key: str, default: int | None = None) -> int:
        """One whole number, not below zero; of one for each layer the most."""
        return max(self.each(key, 1, default))

    def each(self, key: str, count: int, default: int | None = None) -> tuple[int, ...]:
        """One number for each layer, where the file may say one for all; further ones are left out."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        values: Sequence[object] = value if isinstance(value, tuple) else (value,)
        if value is None or not values:
            raise UnknownModelError(f"{self.path} does not say its {self.architecture}.{key}: it is no whole model")
        for one in values:
            if not isinstance(one, int) or not 0 <= one < 1 << 40:
                raise UnknownModelError(f"{self.path} says {one!r} is its {self.architecture}.{key}: that cannot be")
        whole = [int(one) for one in values if isinstance(one, int)]
        if not isinstance(value, tuple):
            return tuple(whole * count)
        if len(whole) < count:
            raise UnknownModelError(
                f"{self.path} says {len(whole)} values of its {self.architecture}.{key} for {count} layers"
            )
        return tuple(whole[:count]) if count > 1 else tuple(whole)
