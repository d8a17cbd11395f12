"""PURE. The table of GPUs for a plan: each card's memory as CUDA reports it, and its generation's abilities.

A card's memory is the total of CUDA's `cudaMemGetInfo`, which vLLM multiplies by `--gpu-memory-utilization` (vLLM 0.32,
v1/worker/utils.py). It is less than the box says, and 0.4 to 5 % less than the driver's tools say. If a vLLM log of
such a card is known, its figure is used, and `source` names the log; else the driver's figure less 1.5 %.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

GIB = 2**30
MIB = 2**20

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": MIB, "gi": GIB, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)
_CUDA_SHARE = 0.985
"""CUDA's share of the driver's figure: the median over the cards below that have both."""
_SAME_CARD = 0.06
"""Largest relative difference of two memory figures that can be one card's."""


class UnknownCardError(Exception):
    """No card has that name. The message names the nearest ones."""


class SizeError(ValueError):
    """A size that cannot be read. The message shows the form."""


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU.

    Attributes:
        name: its common name, as `--gpu` takes it.
        match: words that must all be in the driver's name of it.
        driver_mib: memory as the driver's tools show it, MiB.
        cuda_gib: memory as CUDA shows it, GiB, from a log of vLLM's; None if no log is known.
        capability: of CUDA, major times ten plus minor.
        nvlink: whether cards of this kind are usually joined by NVLink; else they talk over PCIe.
        bandwidth: of its memory, in 10^9 bytes a second, by the maker's data sheet.
        source: where `cuda_gib` was published.
    """

    name: str
    match: tuple[str, ...]
    driver_mib: int
    cuda_gib: float | None
    capability: int
    nvlink: bool
    bandwidth: int
    source: str = "the driver's figure, of which CUDA has 98.5 % at least; no log of vLLM was seen"

    @property
    def total_bytes(self) -> int:
        """The memory that `--gpu-memory-utilization` is a share of."""
        return round(self.driver_mib * MIB * _CUDA_SHARE) if self.cuda_gib is None else round(self.cuda_gib * GIB)


_STARTS = 'vLLM\'s own "Free memory on device" line, in many published logs'

_OCI = "github.com/oracle-samples/oci-data-science-ai-samples, AI Quick Actions"

CARDS: tuple[Card, ...] = (
    Card("v100", ("v100", "32gb"), 32768, None, 70, True, 900),
    Card("t4", ("t4",), 15360, 14.56, 75, False, 320, "vLLM's profiling line on Colab, in many published notebooks"),
    Card("rtx-2080-ti", ("2080 ti",), 11264, None, 75, False, 616),
    Card("a100-40gb", ("a100", "40gb"), 40960, 39.49, 80, True, 1555, _STARTS),
    Card("a100", ("a100", "80gb"), 81920, 79.25, 80, True, 2039, _STARTS),
    Card("rtx-3060", ("rtx 3060",), 12288, None, 86, False, 360),
    Card("a10", ("a10",), 23028, 22.07, 86, False, 600, _OCI),
    Card("a10g", ("a10g",), 23028, 22.07, 86, False, 600, _OCI),
    Card("a40", ("a40",), 46068, None, 86, False, 696),
    Card("rtx-3090", ("rtx 3090",), 24576, 23.58, 86, False, 936, "github.com/vllm-project/vllm/issues/10517"),
    Card("rtx-a5000", ("rtx a5000",), 24564, None, 86, False, 768),
    Card("rtx-a6000", ("rtx a6000",), 49140, 47.4, 86, False, 768, _STARTS),
    Card("rtx-4060", ("rtx 4060",), 8188, None, 89, False, 272),
    Card("rtx-4070", ("rtx 4070",), 12282, None, 89, False, 504),
    Card("l4", ("l4",), 23034, None, 89, False, 300),
    Card("l40s", ("l40s",), 46068, 44.52, 89, False, 864, "github.com/vllm-project/vllm/issues/14011"),
    Card("rtx-4080", ("rtx 4080",), 16376, None, 89, False, 717),
    Card("rtx-4090", ("rtx 4090",), 24564, 23.52, 89, False, 1008, "github.com/alexostapiuk11/coldstart-recon-worker"),
    Card("h20", ("h20",), 97871, None, 90, True, 4000),
    Card("h100", ("h100", "80gb"), 81559, 79.19, 90, True, 3350, _STARTS),
    Card("h100-nvl", ("h100 nvl",), 95830, None, 90, True, 3938),
    Card("h200", ("h200",), 143771, 139.80, 90, True, 4800, _STARTS),
    Card("b200", ("b200",), 183359, None, 100, True, 8000),
    Card("rtx-5090", ("rtx 5090",), 32607, 31.36, 120, False, 1792, _STARTS),
    Card(
        "rtx-pro-6000", ("rtx pro 6000",), 97887, 95.01, 120, False, 1792, "github.com/kubesimplify/website, two GPUs"
    ),
)
"""By generation."""

FP8_KV = 80
"""Least capability on which an fp8 KV cache was seen to run (A100, vLLM 0.19; a row of published.py)."""
FP8_NATIVE = 89
"""Least capability that computes in fp8. Below it, fp8 weights are computed in 16 bits (Marlin)."""
FP8_WEIGHTS = 75
AWQ = 75
BITSANDBYTES = 70
"""Least capabilities of vLLM 0.32 (model_executor/layers/quantization, `get_min_capability`)."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a card, in bytes; None if the driver does not say (in containers)."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Hardware:
    """The hardware to plan for: some equal cards, or a machine without any.

    Attributes:
        name: for a person.
        count: number of cards.
        total_bytes: of one card, as CUDA counts; for a CPU the machine's memory.
        free_bytes: of one card now, the least of them; None if nobody looked.
        capability: of CUDA; None if unknown.
        nvlink: whether NVLink joins them; None if unknown.
        cpu: whether it is a machine without a GPU.
        wide: whether a CPU has AVX-512 or AMX, which vLLM's fp8 KV cache needs there.
        processes: the processes that hold memory of them now.
        measured: whether the figures are this machine's own cards, measured.
    """

    name: str
    count: int
    total_bytes: int
    free_bytes: int | None = None
    capability: int | None = None
    nvlink: bool | None = None
    cpu: bool = False
    wide: bool = False
    processes: tuple[Process, ...] = ()
    measured: bool = False

    def can(self, least: int) -> bool:
        """Whether its generation is at least `least`. An unknown one counts as recent."""
        return not self.cpu and (self.capability is None or self.capability >= least)


def find(name: str) -> Card:
    """Return the card a person means.

    Raises:
        UnknownCardError: No card has that name, or several do.
    """
    words = set(_words(name))
    exact = [card for card in CARDS if _words(card.name) == _words(name)]
    found = exact or [card for card in CARDS if words <= set(_words(card.name)) | set(_words(" ".join(card.match)))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownCardError(f"--gpu {name} may be any of: {', '.join(card.name for card in found)}")
    near = difflib.get_close_matches("-".join(_words(name)), [card.name for card in CARDS], n=4, cutoff=0.3)
    known = f"the nearest are {', '.join(near)}" if near else f"known are {', '.join(card.name for card in CARDS)}"
    raise UnknownCardError(f"no card named {name} is known; {known}. Or give its memory: --vram 24GiB")


def bandwidth_of(name: str) -> int | None:
    """Bytes a second of the memory of a card of this name in the table; None if it is not there."""
    return next((card.bandwidth * 10**9 for card in CARDS if card.name == name), None)


def of_driver(name: str, driver_bytes: int) -> tuple[Card | None, int]:
    """Return the card by the driver's name, None if unknown, and its memory as CUDA counts.

    NVML counts memory that CUDA never gets. A card of the table has the table's figure if the driver's is near it (a
    slice of a card's is not). Any other has 98.5 % of the driver's.
    """
    words = set(_words(name))
    cards = [card for card in CARDS if words.issuperset(_words(" ".join(card.match)))]
    card = min(cards, key=lambda each: abs(each.driver_mib * MIB - driver_bytes), default=None)
    if card and "mig" not in words and abs(driver_bytes - card.total_bytes) <= _SAME_CARD * driver_bytes:
        return card, min(card.total_bytes, driver_bytes)
    return card, round(driver_bytes * _CUDA_SHARE)


def parse_bytes(text: str) -> int:
    """Read a size such as `24GiB`, `24GB`, `24g` or `24576MiB`, in bytes.

    Raises:
        SizeError: It is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise SizeError(f"{text} is no size: write 24GiB, 24GB or 24576MiB")
    value = round(float(match[1]) * _UNITS[match[2].lower()])
    if value < MIB:
        raise SizeError(f"{text} is {value} bytes: write a unit, as in 24GiB")
    return value


def _words(text: str) -> Sequence[str]:
    spaced = re.sub(r"[^a-z0-9]+", " ", text.lower().replace("geforce", "").replace("nvidia", "").replace("tesla", ""))
    return re.sub(r"\b(rtx|gtx)(\d)", r"\1 \2", spaced).split()
