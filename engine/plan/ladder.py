"""PURE. The ladder: ways to serve one model on a machine, from vLLM as it is to a llama-server on the host alone.

`climb` plans every rung for the wanted context with the planners of both engines. It takes the first that fits, keeps
that context, changes no answers but as was allowed, and needs nothing that is missing. Nothing here launches anything.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.plan.budget import Request, defaults, measure, p99_length
from engine.plan.cards import bandwidth_of
from engine.plan.llama.model import LlamaModel
from engine.plan.llama.planner import SHORTEST, Machine, Wishes
from engine.plan.llama.planner import Rung as LlamaRung
from engine.plan.llama.planner import plan as plan_llama
from engine.plan.llama.settings import SLOTS, read_given
from engine.plan.llama.speed import HOST_BANDWIDTH
from engine.plan.parameters import idle_elements
from engine.plan.planner import take, trimmed
from engine.plan.quality import Quality
from engine.plan.remedies import REMEDIES
from engine.plan.remedy import Situation
from engine.plan.weights import Place

PCIE_BANDWIDTH = 31_500_000_000
"""Bytes a second of 16 lanes of PCIe 4.0, one way: 16 x 16 GT/s in 128b/130b. A slower slot is slower in proportion."""
_ROUND = 256
_ANY = 1 << 31
"""Tokens of a model that does not say for how many it was made."""
_OTHER_RUNGS = ("context", "fp8 KV cache")
"""Trims that are rungs of their own, or give up what was wished."""


class Engine(StrEnum):
    """The engines of rungs."""

    VLLM = "vllm"
    LLAMA = "llama-server"


class Of(StrEnum):
    """The checkpoints that a step is for."""

    MODEL = "the model"
    OTHERS = "each alternative"
    ALL = "the model, then each alternative"


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the ladder: a way that vLLM may serve, made of remedies of its planner (`remedies.py`).

    Attributes:
        name: for a person.
        needs: what must be there.
        flags: of vLLM that make it.
        remedies: by their names.
        changes: what they make smaller.
        of: the checkpoints it is for.
        package: that the engine's environment must have; "" for none.
    """

    name: str
    needs: str = ""
    flags: str = ""
    remedies: tuple[str, ...] = ()
    changes: frozenset[Quality] = frozenset()
    of: Of = Of.MODEL
    package: str = ""


BNB_PLUGIN = "vllm-bnb-plugin"
"""The package that brings bitsandbytes to vLLM since 0.28 (vllm-project/vllm#43529)."""
_CACHE, _WEIGHTS = frozenset({Quality.KV_CACHE}), frozenset({Quality.WEIGHTS})
_PARALLEL = "tensor and pipeline parallelism"

STEPS: tuple[Step, ...] = (
    Step("vLLM"),
    Step("vLLM, fp8 KV cache", "a card that can, or AVX-512", "--kv-cache-dtype fp8", ("fp8 KV cache",), _CACHE),
    Step("vLLM, alternative", "a checkpoint that was named", of=Of.OTHERS),
    Step(
        "vLLM, fp8 weights", "weights of 16 bits, a card that can", "--quantization fp8",
        ("fp8 weights",), _WEIGHTS,
    ),
    Step(
        "vLLM, 4-bit weights", f"the same, and {BNB_PLUGIN}", "--quantization bitsandbytes",
        ("bitsandbytes weights",), _WEIGHTS, package=BNB_PLUGIN,
    ),
    Step(
        "vLLM, all cards", "several cards", "--tensor-parallel-size N --pipeline-parallel-size M",
        (_PARALLEL,), of=Of.ALL,
    ),
    Step(
        "vLLM, all cards, fp8 weights", "both", "--tensor-parallel-size N --quantization fp8",
        (_PARALLEL, "fp8 weights"), _WEIGHTS,
    ),
    Step(
        "vLLM, weights partly on the host", "room there for up to half of them", "--cpu-offload-gb N",
        ("weights in host memory",), of=Of.ALL,
    ),
)  # fmt: skip
"""In the order they are tried. llama-server's ways come after them (`llama/planner.py`, `WAYS`)."""


@dataclass(frozen=True, slots=True)
class LlamaRequest:
    """A GGUF file for llama-server, and the arguments that were given for it. A plan never changes them."""

    model: LlamaModel
    given: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to serve the model.

    Attributes:
        name: for a person.
        engine: that serves it.
        model: the checkpoint that it serves, as it was named.
        given: the engine's arguments that were given.
        arguments: of the engine, those that the plan sets beside them.
        environ: variables of the engine that the plan sets.
        context: tokens of the longest request.
        world: cards that it uses; 0 on a machine without any.
        card: bytes on the fullest card, at the worse end, with one request of the wanted context.
        host: bytes on the host.
        seconds: for one token at least; None if the card's bandwidth is not known.
        changes: what it makes smaller.
        short: bytes missing; 0 where it fits.
        allowed: whether all that it changes is allowed.
        lacks: what it needs and is not here; "" for nothing.
    """

    name: str
    engine: Engine
    model: str
    given: tuple[str, ...]
    arguments: tuple[str, ...]
    environ: tuple[tuple[str, str], ...]
    context: int
    world: int
    card: int
    host: int
    seconds: float | None
    changes: frozenset[Quality]
    short: int
    allowed: bool
    lacks: str

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return self.short <= 0


@dataclass(frozen=True, slots=True)
class Ladder:
    """All rungs in order, the index of the one to take (None if there is none), and the wanted context in tokens."""

    rungs: tuple[Rung, ...]
    taken: int | None
    wanted: int


def climb(
    checkpoints: Sequence[Request | LlamaRequest],
    machine: Machine,
    *,
    allowed: Collection[Quality] = (),
    wanted: int | None = None,
    lacking: Collection[str] = (),
) -> Ladder:
    """Plan every rung.

    Args:
        checkpoints: of one model, the one to serve first; vLLM's hardware is in each request. That a further one was
            named allows its own quantization.
        machine: for llama-server.
        allowed: what may be made smaller beyond that.
        wanted: tokens of the longest request; None for what was given to the engine, the traffic's 99th percentile, or
            a chat's.
        lacking: packages and engines that are not here.

    Raises:
        engine.plan.budget.RefusedError: vLLM would refuse the arguments with any amount of memory.
        engine.arguments.ArgumentError: A value cannot be read.
        engine.plan.llama.settings.GivenError: An argument for llama-server cannot be read.
    """
    wanted = _wanted(checkpoints) if wanted is None else wanted
    rungs = (
        *_of_vllm(checkpoints, wanted, allowed, lacking),
        *_of_llama(checkpoints, machine, wanted, allowed, lacking),
    )
    able = (
        number
        for number, rung in enumerate(rungs)
        if rung.fits and rung.allowed and rung.context >= wanted and not rung.lacks
    )
    return Ladder(rungs, next(able, None), wanted)


def _wanted(checkpoints: Sequence[Request | LlamaRequest]) -> int:
    longest = []
    for checkpoint in checkpoints:
        if isinstance(checkpoint, LlamaRequest):
            given = read_given(checkpoint.given, 1)
            if context := given.get("context"):
                share = int(context) // (1 if given.get("unified", True) else given.get("slots", SLOTS))
                return min(share, _trained(checkpoint.model))
            longest.append(_trained(checkpoint.model))
            continue
        length = checkpoint.arguments.integer("--max-model-len")
        if length is not None and length > 0:
            return length
        if seen := p99_length(checkpoint.traffic):
            return seen
        longest.append(checkpoint.shape.default_length)
    return min(SHORTEST, *longest) if longest else SHORTEST


def _trained(model: LlamaModel) -> int:
    return model.trained or _ANY


def _of_vllm(
    checkpoints: Sequence[Request | LlamaRequest], wanted: int, allowed: Collection[Quality], lacking: Collection[str]
) -> Iterator[Rung]:
    for step in STEPS:
        for number, request in enumerate(checkpoints):
            skipped = {Of.MODEL: number > 0, Of.OTHERS: number == 0, Of.ALL: False}[step.of]
            if skipped or isinstance(request, LlamaRequest):
                continue
            if rung := _vllm(step, request, wanted, allowed, lacking):
                yield replace(rung, name=f"{rung.name}: {_short(request.model)}") if number else rung


def _short(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]


def _vllm(
    step: Step, request: Request, wanted: int, allowed: Collection[Quality], lacking: Collection[str]
) -> Rung | None:
    wanted = min(wanted, request.shape.max_positions)
    settings = replace(defaults(request), max_model_len=wanted)
    now = Situation(request, settings, measure(request, settings))
    done = []
    for remedy in REMEDIES:
        if remedy.name in step.remedies:
            if (taken := take(remedy, now)) is None:
                return None
            done.append(taken[0])
            now = taken[1]
    changes, now = trimmed(now, without=_OTHER_RUNGS)
    done += changes
    words = [word for change in done for word in change.words]
    if not request.arguments.has("--max-model-len"):
        wanted = _longest(now)
        words += () if wanted == request.shape.default_length else ("--max-model-len", str(wanted))
    cpu = request.hardware.cpu
    budget, moved = now.budget, now.settings.cpu_offload_bytes * now.settings.world
    used = budget.weights + budget.overhead.total.high + budget.needed
    needed = {Engine.VLLM.value, step.package} & set(lacking)
    return Rung(
        step.name,
        Engine.VLLM,
        request.model,
        request.arguments.words,
        tuple(words),
        tuple(pair for change in done for pair in change.environ),
        wanted,
        0 if cpu else now.settings.world,
        0 if cpu else used,
        used if cpu else moved,
        _seconds(now),
        step.changes,
        budget.short,
        step.changes <= set(allowed),
        ", ".join(sorted(needed)),
    )


def _longest(now: Situation) -> int:
    """Tokens of the longest request that fits, no less than what is wished."""
    whole, wished = now.request.shape.default_length, now.settings.max_model_len
    if not now.budget.fits or wished >= whole:
        return wished
    longest = measure(now.request, replace(now.settings, max_model_len=whole)).longest
    return whole if longest >= whole else max(wished, longest // _ROUND * _ROUND)


def _seconds(now: Situation) -> float | None:
    """Seconds for a token at least: what it reads, by the bandwidth of where it lies. Stages take turns."""
    request, settings, budget = now.request, now.settings, now.budget
    bandwidth = HOST_BANDWIDTH if request.hardware.cpu else bandwidth_of(request.hardware.name)
    if bandwidth is None:
        return None
    share = _read(request)
    read = share * budget.weights + budget.bytes_per_token * settings.max_model_len
    crossing = share * settings.cpu_offload_bytes / PCIE_BANDWIDTH
    return settings.pipeline_parallel * (read / bandwidth + crossing)


def _read(request: Request) -> float:
    """The share of the weights that one token reads: no embedding but an output's, and of experts those in use."""
    parts = request.weights.parts
    total = sum(part.elements for part in parts)
    apart = any(part.place is Place.HEAD for part in parts)
    idle = idle_elements(request.shape)
    idle += sum(part.elements for part in parts if apart and part.place is Place.EMBEDDING)
    return max(0, total - idle) / total if total else 1.0


def _of_llama(
    checkpoints: Sequence[Request | LlamaRequest],
    machine: Machine,
    wanted: int,
    allowed: Collection[Quality],
    lacking: Collection[str],
) -> Iterator[Rung]:
    files = [checkpoint for checkpoint in checkpoints if isinstance(checkpoint, LlamaRequest)]
    for asked in files:
        wishes = Wishes(wanted, roomy=True, small_cache=Quality.KV_CACHE in allowed, given=asked.given)
        for rung in plan_llama(asked.model, machine, wishes).rungs:
            words = rung.settings.arguments(asked.given)
            file = f": {_short(str(asked.model.path))}" if len(files) > 1 else ""
            yield Rung(
                f"{Engine.LLAMA}, {rung.name}{file}",
                Engine.LLAMA,
                str(asked.model.path),
                asked.given,
                words[: len(words) - len(asked.given)],
                (),
                min(rung.settings.longest, _trained(asked.model)),
                machine.cards,
                rung.memory.fullest,
                rung.memory.host.total,
                rung.seconds,
                _changes(rung),
                rung.short,
                rung.allowed,
                Engine.LLAMA.value if Engine.LLAMA in lacking else "",
            )


def _changes(rung: LlamaRung) -> frozenset[Quality]:
    return frozenset() if rung.settings.cache_type_k == "f16" else _CACHE
