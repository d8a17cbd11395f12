"""PURE. What a person gave on vLLM's command line: no plan ever changes it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-q": "--quantization"}
_SAME = {"--kv-cache-memory": "--kv-cache-memory-bytes"}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class ArgumentError(ValueError):
    """A value that cannot be read. The message names the flag and the value."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Flags by their full names with dashes (`--max-model-len`), and the words given for each; a switch has none."""

    words: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, given: Iterable[str]) -> "Arguments":
        """Read an argument list as vLLM's parser does: `--max_model_len=8k` is `--max-model-len 8k`; the last wins."""
        words: dict[str, tuple[str, ...]] = {}
        flag = ""
        for word in given:
            name, joined, value = word.partition("=")
            if word.startswith("--") or name in _SHORT:
                flag = _SHORT.get(name, name.replace("_", "-"))
                flag = _SAME.get(flag, flag)
                words[flag] = (value,) if joined else ()
            elif flag:
                words[flag] = (*words[flag], word)
        return cls(words)

    def given(self, *flags: str) -> bool:
        """Whether any of these was given, or its negation (`--no-enable-prefix-caching`)."""
        return any(flag in self.words or f"--no-{flag[2:]}" in self.words for flag in flags)

    def text(self, flag: str) -> str | None:
        """The value of a flag; None where it was not given or is a switch."""
        return next(iter(self.words.get(flag, ())), None)

    def integer(self, flag: str) -> int | None:
        """The value of a flag as a number, as vLLM reads them: `8k` is 8,000, `8K` is 8,192 and `auto` is -1.

        Raises:
            ArgumentError: It is no number.
        """
        value = self.text(flag)
        if value is None:
            return None
        if value == "auto":
            return -1
        unit = _UNITS.get(value[-1:], 1)
        try:
            return int(float(value[:-1] if unit > 1 else value) * unit)
        except (ValueError, OverflowError):
            raise ArgumentError(f"{flag} {value} is no number") from None

    def number(self, flag: str) -> float | None:
        """The value of a flag as a fraction.

        Raises:
            ArgumentError: It is no number.
        """
        value = self.text(flag)
        try:
            number = None if value is None else float(value)
        except ValueError:
            number = math.nan
        if number is not None and not math.isfinite(number):
            raise ArgumentError(f"{flag} {value} is no number")
        return number
