"""PURE. The parser of a vLLM server's arguments, which reads them as vLLM's own parser does.

Source: vLLM 0.32 (`utils/argparse_utils.py`, `engine/arg_utils.py`, `entrypoints/launchers/cli_args.py`) and argparse.
`tests/integration/test_engine_arguments.py` holds the table and the parser against the real one.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice


class ArgumentError(ValueError):
    """A value that vLLM would refuse. The message names the flag and the value."""


class Value(Enum):
    """The ways vLLM reads the value of a flag."""

    TEXT = auto()
    SWITCH = auto()
    """It has none; `--no-` before its name turns it off."""
    INTEGER = auto()
    SIZE = auto()
    """A whole number: `8k` is 8,000 and `8K` is 8,192."""
    SIZE_OR_AUTO = auto()
    """A size, or `auto`, which is -1."""
    FRACTION = auto()


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that kvgate reads, sets, or refuses because it sets it itself (`command.REFUSED_FLAGS`).

    Attributes:
        name: Its full name.
        value: How its value is read.
        aliases: Its other names.
    """

    name: str
    value: Value = Value.TEXT
    aliases: tuple[str, ...] = ()


FLAGS = (
    Flag("--api-key"),
    Flag("--block-size", Value.INTEGER),
    Flag("--chat-template"),
    Flag("--chat-template-content-format"),
    Flag("--compilation-config", aliases=("-cc",)),
    Flag("--config"),
    Flag("--config-format"),
    Flag("--cpu-offload-gb", Value.FRACTION),
    Flag("--data-parallel-size", Value.INTEGER, ("-dp",)),
    Flag("--dtype"),
    Flag("--enable-prefix-caching", Value.SWITCH),
    Flag("--enforce-eager", Value.SWITCH),
    Flag("--gpu-memory-utilization", Value.FRACTION, ("--device-memory-utilization",)),
    Flag("--hf-config-path"),
    Flag("--hf-overrides"),
    Flag("--host"),
    Flag("--kv-cache-dtype"),
    Flag("--kv-cache-memory-bytes", Value.SIZE),
    Flag("--kv-offloading-size", Value.FRACTION),
    Flag("--kv-transfer-config"),
    Flag("--load-format"),
    Flag("--mamba-ssm-cache-dtype"),
    Flag("--max-model-len", Value.SIZE_OR_AUTO),
    Flag("--max-num-batched-tokens", Value.SIZE),
    Flag("--max-num-seqs", Value.INTEGER),
    Flag("--model"),
    Flag("--optimization-level"),
    Flag("--pipeline-parallel-size", Value.INTEGER, ("-pp",)),
    Flag("--port", Value.INTEGER),
    Flag("--quantization", aliases=("-q",)),
    Flag("--revision"),
    Flag("--root-path"),
    Flag("--served-model-name"),
    Flag("--ssl-certfile"),
    Flag("--ssl-keyfile"),
    Flag("--tensor-parallel-size", Value.INTEGER, ("-tp",)),
    Flag("--tokenizer"),
    Flag("--uds"),
)
"""The flags of vLLM 0.32 that kvgate knows."""

_BY_NAME = {flag.name: flag for flag in FLAGS}
_SPELLINGS = {spelling: flag.name for flag in FLAGS for spelling in (flag.name, *flag.aliases)} | {
    (off := f"--no-{flag.name.removeprefix('--')}"): off for flag in FLAGS if flag.value is Value.SWITCH
}
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[kmgtKMGT])")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Argument:
    """A flag as it was given.

    Attributes:
        flag: Its full name (`--max-model-len`). A flag outside the table keeps its spelling. Empty for words that
            belong to no flag.
        written: Its words as they were given.
        values: Its values. Empty for a switch, and for a flag given in parts (`--compilation-config.mode 3`).
        on: False for the negation of a switch (`--no-enforce-eager`).
    """

    flag: str
    written: tuple[str, ...]
    values: tuple[str, ...] = ()
    on: bool = True


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments a person gave to vLLM, in their order.

    A value that vLLM would refuse reads as None. vLLM reports what is wrong with it, and so does `check`.
    """

    given: tuple[Argument, ...] = ()

    @classmethod
    def parse(cls, words: Iterable[str]) -> "Arguments":
        """Read a command line after its program."""
        return cls(tuple(_parsed(iter(words))))

    @property
    def words(self) -> tuple[str, ...]:
        """The command line as it was given."""
        return tuple(word for argument in self.given for word in argument.written)

    @property
    def flags(self) -> frozenset[str]:
        """The full names of the given flags. A negation counts under the name of its switch."""
        return frozenset(argument.flag for argument in self.given if argument.flag)

    def has(self, *flags: str) -> bool:
        """Whether any of these flags, or its negation, was given."""
        return not self.flags.isdisjoint(flags)

    def without(self, *flags: str) -> "Arguments":
        """The arguments without these flags."""
        return Arguments(tuple(argument for argument in self.given if argument.flag not in flags))

    def switch(self, flag: str) -> bool | None:
        """Whether a switch was turned on; None if it was not given. vLLM takes the last of a repeated flag."""
        found = self._last(flag)
        return None if found is None else found.on

    def text(self, flag: str) -> str | None:
        """The value of a flag."""
        found = self._last(flag)
        return None if found is None else next(iter(found.values), None)

    def integer(self, flag: str) -> int | None:
        """The value of a flag as a whole number, as vLLM reads this flag's."""
        value = self.text(flag)
        return None if value is None else _integer(value, _BY_NAME[flag].value)

    def fraction(self, flag: str) -> float | None:
        """The value of a flag as a finite number."""
        value = self.text(flag)
        return None if value is None else _fraction(value)

    def check(self) -> None:
        """Refuse arguments that vLLM could not read.

        Raises:
            ArgumentError: A flag of the table has no value, or should have a number and does not.
        """
        for argument in self.given:
            kind = _BY_NAME[argument.flag].value if argument.flag in _BY_NAME else Value.SWITCH
            if kind in {Value.SWITCH, Value.TEXT}:
                continue
            if not argument.values:
                raise ArgumentError(f"{argument.flag} has no value")
            value = argument.values[0]
            if (_fraction(value) if kind is Value.FRACTION else _integer(value, kind)) is None:
                raise ArgumentError(f"{argument.flag} {value} is no number")

    def _last(self, flag: str) -> Argument | None:
        return next((argument for argument in reversed(self.given) if argument.flag == flag), None)


def _parsed(words: Iterator[str]) -> Iterator[Argument]:
    flag: Argument | None = None
    """The flag that takes the values that come."""
    for word in words:
        began = _begun(word)
        if began is None and flag is not None:
            flag = Argument(flag.flag, (*flag.written, word), (*flag.values, word), flag.on)
            continue
        if flag is not None:
            yield flag
            flag = None
        if began is None:
            yield Argument("", (word,))
            continue
        name, joined, value = began
        negated = name.startswith("--no-")
        full = f"--{name.removeprefix('--no-')}" if negated else name
        if "." in word.partition("=")[0]:  # part of a JSON value: the next word is its value, whatever it is
            yield Argument(full, (word, *(() if joined else islice(words, 1))))
        elif joined:
            yield Argument(full, (word,), (value,), not negated)
        else:
            flag = Argument(full, (word,), (), not negated)
    if flag is not None:
        yield flag


def _begun(word: str) -> tuple[str, bool, str] | None:
    """The flag that begins here, whether a value is joined to it, and that value; None if the word is a value."""
    if not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.fullmatch(word):
        return None
    if word.startswith("-O"):
        return "--optimization-level", word != "-O", word[2:].removeprefix("=")
    name, joined, value = word.partition("=")
    head = name.partition(".")[0]
    if head.startswith("--"):
        head = head.replace("_", "-")
    elif head not in _SPELLINGS and head[:2] in _SPELLINGS:  # `-qawq`
        return _SPELLINGS[head[:2]], True, word[2:]
    known = _full_name(head)
    if known is None and " " in head:
        return None
    return known or head, bool(joined), value


def _full_name(spelling: str) -> str | None:
    """The flag with this spelling, or the only one that begins so: argparse takes abbreviations."""
    if spelling in _SPELLINGS:
        return _SPELLINGS[spelling]
    begun = [name for known, name in _SPELLINGS.items() if known.startswith(spelling)]
    return begun[0] if len(begun) == 1 else None


def _integer(value: str, kind: Value) -> int | None:
    value = value.strip()
    if kind is Value.SIZE_OR_AUTO and value.lower() == "auto":
        return -1
    found = _SIZE.fullmatch(value) if kind is not Value.INTEGER else None
    try:
        if found is None:
            return int(value)
        number, unit = found["number"], found["unit"]
        return int(float(number) * _UNITS[unit]) if unit.islower() else int(number) * _UNITS[unit]
    except ValueError:
        return None


def _fraction(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
