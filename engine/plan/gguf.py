"""The reader of GGUF files: metadata and the list of tensors, without the weights.

The format is ggml's (ggml/docs/gguf.md; versions 2 and 3, little-endian). A file may be cut off, be something else, or
lie about its own sizes: no number of it is believed before the file is known to be that long, and what is kept is
bounded whatever it says.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.plan.llama.blocks import BLOCKS

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_WINDOW = 1 << 20
"""Bytes of a file in memory at once."""
_MOST_TEXT = 16 << 20
"""Bytes of all strings that are kept. The longest in use are chat templates, of tens of kilobytes."""
_LONGEST_NAME = 64
"""Bytes of a tensor's name, ggml's own limit."""
_MOST_KEYS = 1 << 16
_MOST_TENSORS = 1 << 17
_MOST_STRINGS = 1 << 24
"""Strings of all arrays together: a vocabulary has a quarter of a million, and as many merges again or twice."""
_LONGEST_ARRAY = 1 << 12
"""Values of an array that is kept. One for each layer is; a vocabulary's scores are not."""
_MOST_VALUES = 1 << 18
"""Values of all arrays that are kept: a few for each layer."""
_MOST_DIMENSIONS = 4
_MOST_BYTES = 1 << 62

HUB_FILE = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*):(?P<file>[\w.-]+)")
"""A GGUF file on a hub, by its name or its bits, as `owner/name:Q4_K_M`."""
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_AGAIN = "The download was cut off or the file damaged: fetch it again."
_OTHERS = (
    (b"version https://git-lfs", "a pointer of Git LFS and not the file itself", "Run `git lfs pull` where it lies."),
    (b"<", "a page of a web site", "Fetch it again by its download link (on a hub the one with /resolve/)."),
    (b"PK\x03\x04", "a zip archive", "Unpack it, or fetch the GGUF file of this model."),
    (b"ggml", "a file of the time before GGUF", "Fetch the model anew: llama-server dropped that format in 2023."),
    (b"ggjt", "a file of the time before GGUF", "Fetch the model anew: llama-server dropped that format in 2023."),
)
"""What is often found under such a name, by its first bytes."""

Value = str | int | float | bool | tuple[int | float | bool, ...]


class GgufError(Exception):
    """A GGUF file that cannot be read.

    Attributes:
        cause: what is wrong, with the file and the value that shows it.
        remedy: what to do about it.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(f"{cause}\n{remedy}")
        self.cause = cause
        self.remedy = remedy


class _BrokenError(Exception):
    """The file is not what it says. The message says how, without its name."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor by its description. `bytes` is what its blocks take."""

    name: str
    shape: tuple[int, ...]
    block: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Gguf:
    """The description of one model, from one file or from all of a split one.

    Attributes:
        path: the file, of a split model the first.
        bytes: of all its files.
        metadata: keys and values. Of strings in arrays, and of long arrays, only the number is kept, in `lengths`.
        lengths: of every array.
        tensors: of all its files.
    """

    path: Path
    bytes: int
    metadata: Mapping[str, Value]
    lengths: Mapping[str, int]
    tensors: tuple[GgufTensor, ...]


def is_gguf(model: str) -> bool:
    """Whether a model's name means a GGUF file: by its ending, as one on a hub, or by its first bytes."""
    path = Path(model).expanduser()
    if HUB_FILE.fullmatch(model) and not path.exists():
        return True
    if path.suffix.lower() == ".gguf":
        return not path.is_dir()
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(model: str) -> Gguf:
    """Read the metadata and tensors of a GGUF file, and of those it is split into.

    Raises:
        GgufError: It is missing, cut off, broken or something else. The message gives the way out.
    """
    path = Path(model).expanduser()
    first = _one(path)
    named = _SPLIT.fullmatch(path.name)
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return first
    if named is None or int(named["count"]) != count:
        raise GgufError(
            f"{path} says it is one of {count} files, and its name does not",
            f"Give the parts their names again: NAME-00001-of-{count:05}.gguf and so on; llama-server finds them so.",
        )
    if first.metadata.get("split.no") != 0 or int(named["number"]) != 1:
        begin = f"{named['stem']}-00001-of-{count:05}.gguf"
        raise GgufError(f"{path} is part {int(named['number'])} of {count}", f"Name the first one: {begin}")
    parts = [first]
    for number in range(2, count + 1):
        part = path.with_name(f"{named['stem']}-{number:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise GgufError(f"{part} is missing, part {number} of {count}", "Fetch the missing parts into one folder.")
        parts.append(_one(part))
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise GgufError(
            f"the {count} parts of {path} have {len(tensors)} of {expected} tensors", "They are parts of two models."
        )
    return Gguf(path, sum(part.bytes for part in parts), first.metadata, first.lengths, tensors)


def _one(path: Path) -> Gguf:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            return _read(path, _Reader(file, size))
    except FileNotFoundError:
        raise GgufError(f"there is no file {path}", "Check the path.") from None
    except IsADirectoryError:
        raise GgufError(f"{path} is a folder", "Name the file in it that ends in .gguf.") from None
    except OSError as error:
        raise GgufError(f"{path} cannot be read ({error.strerror})", "Check who may read it.") from error


def _read(path: Path, reader: "_Reader") -> Gguf:
    start = reader.start(64)
    if start[: len(MAGIC)] != MAGIC:
        for beginning, what, remedy in _OTHERS:
            if start.lstrip().startswith(beginning):
                raise GgufError(f"{path} is {what}", remedy)
        cause = f"it is empty ({reader.size} bytes)" if not start.strip(b"\0") else f"it begins with {start[:4]!r}"
        raise GgufError(f"{path} is no GGUF file: {cause}", _AGAIN)
    try:
        return _described(path, reader)
    except _BrokenError as error:
        raise GgufError(f"{path} is no whole GGUF file: {error}", _AGAIN) from error


def _described(path: Path, reader: "_Reader") -> Gguf:
    reader.take(len(MAGIC))
    version = reader.number("I")
    if version not in _VERSIONS:
        swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
        what = "its bytes are in big-endian order" if swapped in _VERSIONS else f"it is of version {version}"
        raise GgufError(
            f"{path} cannot be read: {what}, and versions 2 and 3 in little-endian order are known",
            "Fetch another conversion of the model.",
        )
    tensors = _bounded(reader.number("Q"), _MOST_TENSORS, "tensors")
    keys = _bounded(reader.number("Q"), _MOST_KEYS, "metadata keys")
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key = reader.string()
        if not key or key in metadata or key in lengths:
            raise _BrokenError(f"the metadata key {key!r} is empty or there twice")
        _put(reader, key, metadata, lengths)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _BrokenError(f"its general.alignment is {alignment}, and no power of two")
    described = tuple(_tensor(reader) for _ in range(tensors))
    begin = -(-reader.position // alignment) * alignment
    end = begin + max((offset + tensor.bytes for tensor, offset in described), default=0)
    if end > reader.size:
        raise _BrokenError(f"it has {reader.size:,} of the {end:,} bytes that its tensors take")
    if len({tensor.name for tensor, _ in described}) != tensors:
        raise _BrokenError("two of its tensors have one name")
    return Gguf(path, reader.size, metadata, lengths, tuple(tensor for tensor, _ in described))


def _put(reader: "_Reader", key: str, metadata: dict[str, Value], lengths: dict[str, int]) -> None:
    kind = reader.number("I")
    if kind == _STRING:
        metadata[key] = reader.string()
    elif kind in _NUMBERS:
        metadata[key] = reader.number(_NUMBERS[kind])
    elif kind == _ARRAY:
        inner, count = reader.number("I"), reader.number("Q")
        lengths[key] = count
        if inner == _STRING:
            reader.skip_strings(count)
        elif inner not in _NUMBERS:
            raise _BrokenError(f"the array {key} is of type {inner}, which is not known")
        elif count > _LONGEST_ARRAY or not reader.keeps(count):
            reader.skip(count * struct.calcsize(f"<{_NUMBERS[inner]}"))
        else:
            metadata[key] = reader.numbers(_NUMBERS[inner], count)
    else:
        raise _BrokenError(f"the metadata key {key!r} is of type {kind}, which is not known")


def _tensor(reader: "_Reader") -> tuple[GgufTensor, int]:
    """One tensor, and where its data begins."""
    name = reader.string(_LONGEST_NAME)
    dimensions = _bounded(reader.number("I"), _MOST_DIMENSIONS, f"dimensions of the tensor {name}")
    shape = tuple(reader.number("Q") for _ in range(dimensions))
    kind, offset = reader.number("I"), reader.number("Q")
    block = BLOCKS.get(kind)
    if block is None:
        raise _BrokenError(f"the tensor {name} is of block type {kind}, which is not known here")
    row = shape[0] if shape else 1
    if row % block.elements:
        raise _BrokenError(f"the tensor {name} has rows of {row}, no whole blocks of {block.name} ({block.elements})")
    size = row // block.elements * block.bytes
    for extent in shape[1:]:
        size *= extent
    if size > _MOST_BYTES or offset > _MOST_BYTES:
        raise _BrokenError(f"the tensor {name} would take {size:,} bytes")
    return GgufTensor(name, shape, block.name, size), offset


def _bounded(count: int, most: int, what: str) -> int:
    if count > most:
        raise _BrokenError(f"it would have {count:,} {what}")
    return count


class _Reader:
    """A file that is read forwards, through a window."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self._text = _MOST_TEXT
        self._strings = 0
        self._values = _MOST_VALUES
        self._window = b""
        self._at = 0
        self._end = 0

    @property
    def position(self) -> int:
        """Bytes read or passed over."""
        return self._end - len(self._window) + self._at

    def start(self, length: int) -> bytes:
        """The first bytes, which stay unread; fewer where there are no more."""
        self._ahead(min(length, self.size))
        return self._window[:length]

    def take(self, length: int) -> bytes:
        """The next bytes.

        Raises:
            _BrokenError: There are not as many.
        """
        self._ahead(length)
        taken = self._window[self._at : self._at + length]
        self._at += length
        return taken

    def number(self, form: str) -> int:
        """The next number of a form of `struct`. A float or truth value is one, too: the caller knows the form."""
        (value,) = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))
        return value  # type: ignore[no-any-return]

    def keeps(self, count: int) -> bool:
        """Whether so many more values of arrays can be kept."""
        self._values -= count
        return self._values >= 0

    def numbers(self, form: str, count: int) -> tuple[int, ...]:
        """The next numbers, all of one form."""
        return struct.unpack(f"<{count}{form}", self.take(struct.calcsize(f"<{count}{form}")))

    def string(self, longest: int = _MOST_TEXT) -> str:
        """The next string."""
        length = self.number("Q")
        if length > min(longest, self._text):
            raise _BrokenError(f"a string at byte {self.position:,} would be {length:,} bytes long")
        self._text -= length
        return self.take(length).decode("utf-8", "replace")

    def skip(self, length: int) -> None:
        """Pass over bytes."""
        left = len(self._window) - self._at
        if length <= left:
            self._at += length
            return
        self._require(length)
        self._end += length - left
        self._file.seek(self._end)
        self._window, self._at = b"", 0

    def skip_strings(self, count: int) -> None:
        """Pass over strings."""
        self._strings = _bounded(self._strings + count, _MOST_STRINGS, "strings in arrays")
        for _ in range(count):
            at = self._at
            if at + 8 > len(self._window):
                self._ahead(8)
                at = self._at
            end = at + 8 + int.from_bytes(self._window[at : at + 8], "little")
            if end <= len(self._window):
                self._at = end
            else:
                self.skip(end - at)

    def _ahead(self, length: int) -> None:
        """Have at least so many bytes in the window after the position."""
        left = len(self._window) - self._at
        if left >= length:
            return
        self._require(length)
        more = self._file.read(max(_WINDOW, length - left))
        self._end += len(more)
        self._window, self._at = self._window[self._at :] + more, 0
        if len(self._window) < length:
            raise _BrokenError(f"it became shorter while it was read, at byte {self._end:,}")

    def _require(self, length: int) -> None:
        if length > self.size - self.position:
            raise _BrokenError(f"it ends at byte {self.size:,}, within its metadata")
