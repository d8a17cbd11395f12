"""PURE. The ladder of retries for an engine whose start failed for lack of memory: the next rung, or a summary.

The order is the one people use by hand: first what the engine itself says would fit, then fewer sequences, then no
CUDA graphs. The user's own arguments stay. A context is shortened only as far as the user allowed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.diagnosis.sign import Diagnosis, Kind
from engine.sequences import fewer
from engine.vllm.command import KV_SPACE

MOST_TRIES = 3
"""Retries with less after the first start. A large model takes minutes to start."""

DEFAULT_MAX_NUM_SEQS = 256
"""vLLM's default on GPUs under 70 GiB (engine/arg_utils.py, 0.32). On larger ones it is 1,024: half of 256 is then a
longer step, and it fits."""

_ROOM_GIB = 1
"""Share of a machine's memory that a smaller KV cache leaves free."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on what may be changed about an engine.

    Attributes:
        given: The flags the user gave.
        min_model_len: The shortest useful context (tokens); None to never shorten it.
        on_gpus: Whether it runs on GPUs.
        kv_space: GiB of KV cache on a CPU, if kvgate chose it; None if the user did, and on GPUs.
    """

    given: frozenset[str] = frozenset()
    min_model_len: int | None = None
    on_gpus: bool = False
    kv_space: int | None = None

    def may_set(self, *flags: str) -> bool:
        """Whether the user gave none of these flags, and no file that may hold them."""
        return not {*flags, "--config"} & self.given


@dataclass(frozen=True, slots=True)
class Rung:
    """One retry with less.

    Attributes:
        why: The change and its reason, in one sentence.
        args: Arguments to add. vLLM takes the last of a repeated flag.
        env: Environment to set.
    """

    why: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is left to try.

    Attributes:
        summary: What was tried and what would help; empty if there is nothing to say.
        tried: Whether starts with less have failed. Then the next will too.
    """

    summary: str = ""
    tried: bool = False


Step = Callable[[Mapping[str, str], Bounds, Sequence[Rung]], Rung | None]
"""A rung, if it applies: given the facts of the diagnosis, what may be changed, and the rungs before."""


def next_rung(diagnosis: Diagnosis, bounds: Bounds, tries: Sequence[Rung], ladder: Sequence[Step]) -> Rung | Stop:
    """Return what to try after a failed start, or why nothing is left.

    Args:
        diagnosis: Why it failed.
        bounds: What may be changed.
        tries: The rungs before, oldest first. Their changes stay.
        ladder: The rungs in order. The first that applies is taken.
    """
    if diagnosis.kind is not Kind.MEMORY:
        return Stop()
    if len(tries) < MOST_TRIES:
        for step in ladder:
            if rung := step(diagnosis.facts, bounds, tries):
                return rung
    return Stop(_verdict(diagnosis.facts, bounds, tries), tried=bool(tries))


def arguments(tries: Sequence[Rung]) -> tuple[str, ...]:
    """The arguments these tries add to the engine's."""
    return tuple(argument for rung in tries for argument in rung.args)


def environment(tries: Sequence[Rung]) -> dict[str, str]:
    """The variables these tries set in the engine's environment."""
    return {name: value for rung in tries for name, value in (rung.env or {}).items()}


def _shorter_context(facts: Mapping[str, str], bounds: Bounds, _: Sequence[Rung]) -> Rung | None:
    fits = _number(facts, "fits")
    if not fits or bounds.min_model_len is None or fits < bounds.min_model_len:
        return None
    return Rung(
        f"the context is {fits:,} tokens long instead of {_number(facts, 'asked'):,}: the KV cache holds no longer one,"
        f" and engine.min_model_len ({bounds.min_model_len:,}) allows it",
        ("--max-model-len", str(fits)),
    )


def _fewer_sequences(facts: Mapping[str, str], bounds: Bounds, tries: Sequence[Rung]) -> Rung | None:
    if not _is_work_space(facts, bounds) or not bounds.may_set("--max-num-seqs"):
        return None
    warmed_up = _number(facts, "requests")
    # Once, unless the sequences themselves do not fit: a second halving frees half as much as the first.
    if not warmed_up and _tried("--max-num-seqs", tries):
        return None
    before = warmed_up or DEFAULT_MAX_NUM_SEQS
    if before < 2:  # noqa: PLR2004 - one cannot be halved
        return None
    return Rung(
        f"at most {fewer(before):,} sequences at once: fewer take less work space",
        ("--max-num-seqs", str(fewer(before))),
    )


def _no_graphs(facts: Mapping[str, str], bounds: Bounds, tries: Sequence[Rung]) -> Rung | None:
    given = not bounds.may_set("--enforce-eager", "--compilation-config", "--optimization-level")
    if given or not _is_work_space(facts, bounds) or _tried("--enforce-eager", tries):
        return None
    return Rung("no CUDA graphs: their memory goes to the KV cache, and decoding is slower", ("--enforce-eager",))


def _smaller_kv_space(facts: Mapping[str, str], bounds: Bounds, tries: Sequence[Rung]) -> Rung | None:
    if bounds.kv_space is None or not facts.get("node"):
        return None
    before = int(environment(tries).get(KV_SPACE, bounds.kv_space))
    fits = min(int(float(facts["free"])) - _ROOM_GIB, before - 1)
    if fits < 1:
        return None
    return Rung(
        f"{fits} GiB of KV cache instead of {before}: the machine has {facts['free']} GiB free",
        env={KV_SPACE: str(fits)},
    )


LADDER: tuple[Step, ...] = (
    _shorter_context,
    _fewer_sequences,
    _no_graphs,
    _smaller_kv_space,
)
"""The rungs for a vLLM."""


def _is_work_space(facts: Mapping[str, str], bounds: Bounds) -> bool:
    """Whether less work space helps: it runs on a GPU, its weights fit, and no other process holds the memory."""
    return bounds.on_gpus and not any(facts.get(name) for name in ("loading", "device", "node"))


def _verdict(facts: Mapping[str, str], bounds: Bounds, tries: Sequence[Rung]) -> str:
    said = []
    if tries:
        said.append(f"kvgate tried with less, to no avail: {'; '.join(rung.why for rung in tries)}.")
    fits, least = _number(facts, "fits"), bounds.min_model_len
    if fits and least is None:
        said.append(f"kvgate shortens the context to {fits:,} tokens by itself with engine.min_model_len: {fits}.")
    elif fits and least is not None and fits < least:
        said.append(f"engine.min_model_len asks for {least:,} tokens, and {fits:,} fit.")
    return " ".join(said)


def _tried(flag: str, tries: Sequence[Rung]) -> bool:
    return any(flag in rung.args for rung in tries)


def _number(facts: Mapping[str, str], name: str) -> int:
    return int(facts.get(name) or 0)
