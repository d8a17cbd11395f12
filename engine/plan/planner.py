"""PURE. The planner: whether a model fits, what to change if not, and the nearest setup that fits.

`plan` measures the request. If it does not fit, `plan` walks the table of remedies: first trims, one on top of another;
then each change of the model or the machine, with the trims it still needs; then two such changes at once. A plan that
fits only at the better end of an unknown range does not count as fitting.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.plan.budget import Budget, Request, Settings, defaults, measure
from engine.plan.cards import CARDS, GIB, Card, Hardware
from engine.plan.hints import Hint, hints
from engine.plan.remedies import REMEDIES
from engine.plan.remedy import Remedy, Situation, Stage
from engine.plan.weights import SCHEMES

_PASSES = 2
_COUNTS = (1, 2, 4, 8)


class Verdict(StrEnum):
    """The verdict of a plan."""

    FITS = "fits"
    CHANGES = "fits with changes"
    NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class Change:
    """One remedy that the plan uses.

    Attributes:
        remedy: its name in the table.
        words: for vLLM's command line; empty if it changes the checkpoint or the environment.
        reason: with its figures.
        environ: variables it sets.
        checkpoint: the kind of checkpoint it needs instead, by its scheme; "" for the named one.
        kv_bytes: of KV cache that it adds on each rank, at the worse end.
        tokens: of KV cache that it adds, likewise.
    """

    remedy: str
    words: tuple[str, ...]
    reason: str
    environ: tuple[tuple[str, str], ...]
    checkpoint: str
    kv_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of the weights on one rank by another scheme. `kind` is what to look for."""

    scheme: str
    bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's answer.

    Attributes:
        model: as the user named it.
        verdict: in a word.
        asked: the budget of the original request.
        spread: words for vLLM's command line that spread it over all cards, if `--gpus` asks for that and no flag does.
        changes: that make it fit, in order; empty if nothing does.
        budget: with the changes.
        settings: with the changes.
        sizes: of the weights by other schemes.
        hints: on the environment, each with its condition.
        nearest: setups that would fit, if this one does not.
        notes: on the figures, for a person.
    """

    model: str
    verdict: Verdict
    asked: Budget
    spread: tuple[str, ...]
    changes: tuple[Change, ...]
    budget: Budget
    settings: Settings
    sizes: tuple[Size, ...]
    hints: tuple[Hint, ...]
    nearest: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words to add to vLLM's command line."""
        return (*self.spread, *(word for change in self.changes for word in change.words))

    @property
    def environ(self) -> dict[str, str]:
        """Variables that the changes set."""
        return dict(pair for change in self.changes for pair in change.environ)


def plan(request: Request) -> Plan:
    """Make the plan for a request.

    Raises:
        engine.plan.budget.RefusedError: vLLM would refuse the arguments with any amount of memory.
        engine.arguments.ArgumentError: A value cannot be read.
        engine.plan.kv.UnpackableError: vLLM would refuse the model, since its layers have no common block size.
    """
    settings = defaults(request)
    if (request.arguments.integer("--max-model-len") or 0) < 0:  # vLLM takes the longest that fits
        longest = measure(request, settings).longest
        settings = replace(settings, max_model_len=longest or settings.max_model_len)
    asked = Situation(request, settings, measure(request, settings))
    changes, after = _solved(asked)
    verdict = Verdict.NOT if not after.budget.fits else Verdict.CHANGES if changes else Verdict.FITS
    if verdict is Verdict.NOT:
        changes, after = (), asked
    return Plan(
        request.model,
        verdict,
        asked.budget,
        _spread(request, settings),
        changes,
        after.budget,
        after.settings,
        _sizes(asked),
        hints(after),
        _nearest(request) if verdict is Verdict.NOT else (),
        _notes(asked),
    )


def _spread(request: Request, settings: Settings) -> tuple[str, ...]:
    ranks = settings.tensor_parallel
    if ranks == 1 or request.arguments.has("--tensor-parallel-size"):
        return ()
    return ("--tensor-parallel-size", str(ranks))


def _solved(asked: Situation) -> tuple[tuple[Change, ...], Situation]:
    changes, after = trimmed(asked)
    if after.budget.fits:
        return changes, after
    for reshaped in _reshaped(asked):
        before, situation = reshaped
        more, result = trimmed(situation)
        if result.budget.fits:
            return (*before, *more), result
    return changes, after


def _reshaped(asked: Situation) -> Iterator[tuple[tuple[Change, ...], Situation]]:
    """First each change of model or machine alone, in the table's order, then two of different kinds at once."""
    remedies = [remedy for remedy in REMEDIES if remedy.stage is Stage.RESHAPE]
    alone = [(remedy, taken) for remedy in remedies if (taken := take(remedy, asked))]
    yield from (((change,), after) for _, (change, after) in alone)
    for first, (change, after) in alone:
        for second in remedies[remedies.index(first) + 1 :]:
            if taken := take(second, after):
                yield (change, taken[0]), taken[1]


def trimmed(start: Situation, without: Collection[str] = ()) -> tuple[tuple[Change, ...], Situation]:
    """Apply the trims that are needed or always apply, but for those named.

    A second round adds those that an earlier one made possible.
    """
    changes: dict[str, Change] = {}
    now = start
    for _ in range(_PASSES):
        for remedy in REMEDIES:
            if remedy.stage is not Stage.TRIM or remedy.name in without or (now.budget.fits and not remedy.always):
                continue
            if remedy.name not in changes and (taken := take(remedy, now)):
                changes[remedy.name], now = taken
    return tuple(changes.values()), now


def take(remedy: Remedy, now: Situation) -> tuple[Change, Situation] | None:
    """Apply one remedy; None if it was given another value, or does not help here."""
    if now.request.arguments.has(*remedy.flags):
        return None
    proposal = remedy.propose(now)
    if proposal is None:
        return None
    after = now.then(proposal.settings)
    change = Change(
        remedy.name,
        proposal.words,
        proposal.reason,
        proposal.environ,
        proposal.checkpoint,
        after.budget.kv.low - now.budget.kv.low,
        after.budget.tokens.low - now.budget.tokens.low,
    )
    return change, after


_KINDS = {
    "fp8": "--quantization fp8 of this checkpoint, or one named -FP8",
    "awq": "a checkpoint named -AWQ",
    "gptq": "a checkpoint named -GPTQ-Int4",
    "bitsandbytes": "--quantization bitsandbytes of this one, or one named -bnb-4bit (from vLLM 0.28 on a plugin)",
}


def _sizes(now: Situation) -> tuple[Size, ...]:
    if now.request.shape.quantization is not None or now.settings.quantized:
        return ()
    return tuple(
        Size(scheme, measure(now.request, replace(now.settings, quantized=scheme)).weights, kind)
        for scheme, kind in _KINDS.items()
        if scheme in SCHEMES
    )


def _nearest(request: Request) -> tuple[str, ...]:
    """The fewest of these cards, and the smallest single card, on which the given arguments and weights fit."""
    found = []
    hardware = request.hardware
    if not hardware.cpu:
        for count in _COUNTS:
            if count > hardware.count and (after := _with(request, replace(hardware, count=count, free_bytes=None))):
                found.append(f"{count} x {hardware.name}, {_told(after)}")
                break
    for card in _by_size(CARDS):
        if card.total_bytes > hardware.total_bytes or hardware.cpu:
            one = Hardware(card.name, 1, card.total_bytes, capability=card.capability, nvlink=card.nvlink)
            if after := _with(request, one):
                found.append(f"1 x {card.name}, {_told(after)}")
                break
    return tuple(found)


def _by_size(cards: Sequence[Card]) -> list[Card]:
    def size(card: Card) -> int:
        return card.total_bytes

    return sorted(cards, key=size)


def _with(request: Request, hardware: Hardware) -> Situation | None:
    free = request.arguments.without("--tensor-parallel-size", "--pipeline-parallel-size")
    other = replace(request, hardware=hardware, all_cards=True, arguments=free)
    settings = defaults(other)
    _, after = trimmed(Situation(other, settings, measure(other, settings)))
    return after if after.budget.fits else None


def _told(after: Situation) -> str:
    ranks = f"--tensor-parallel-size {after.settings.tensor_parallel}, " if after.settings.tensor_parallel > 1 else ""
    return f"{ranks}up to {after.settings.max_model_len:,} tokens of context"


def _notes(asked: Situation) -> tuple[str, ...]:
    request, notes = asked.request, []
    shape = request.shape
    if not request.weights.exact:
        notes.append("The weights are estimated from the config: the checkpoint's files were not read.")
    if shape.assumed:
        notes.append(f"The model type {shape.model_type} is not known: it was planned as an ordinary decoder.")
    if shape.multimodal:
        notes.append("What images or audio take while profiling is a wide guess; --limit-mm-per-prompt bounds it.")
    if asked.budget.may_fit and not asked.budget.fits:
        notes.append(
            "As asked it may start or may not: it depends on what this card keeps for activations and graphs "
            f"({asked.budget.overhead.total.low / GIB:.1f} to {asked.budget.overhead.total.high / GIB:.1f} GiB)."
        )
    hardware = request.hardware
    if hardware.capability is not None and hardware.capability < 80 and shape.dtype == "bfloat16":  # noqa: PLR2004
        notes.append(f"{hardware.name} has no bfloat16: vLLM takes float16 instead, and says so.")
    if hardware.count > asked.settings.world and not hardware.cpu:
        notes.append(
            f"{asked.settings.world} of {hardware.count} cards are used as asked; --gpus {hardware.count} uses all."
        )
    return tuple(notes)
