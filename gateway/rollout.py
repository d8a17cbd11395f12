"""PURE. How what runs differs from what shall run, and what is said beforehand of a change that can be noticed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.command import value_of
from engine.program import Program


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to engines.

    Attributes:
        replaced: An old one, and the one that takes its place.
        added: Those that take nobody's place.
        removed: Those whose place nobody takes.
    """

    replaced: tuple[tuple[Program, Program], ...] = ()
    added: tuple[Program, ...] = ()
    removed: tuple[Program, ...] = ()

    @classmethod
    def between(cls, old: Sequence[Program], new: Sequence[Program]) -> "Change":
        """Pair those that go with those that come: of one served name first, then as they stand."""
        going = [program for program in old if program not in new]
        coming = [program for program in new if program not in old]
        pairs: list[tuple[Program, Program]] = []
        for alike in (True, False):
            for program in list(coming):
                match = next((one for one in going if not alike or serves(one) == serves(program)), None)
                if match is not None:
                    going.remove(match)
                    coming.remove(program)
                    pairs.append((match, program))
        return cls(tuple(pairs), tuple(coming), tuple(going))


def serves(program: Program) -> str:
    """The name under which clients know an engine's model."""
    return value_of(program.argv, "--served-model-name") or program.name


def address(program: Program) -> str:
    """Host and port of an engine."""
    return (program.ready_url or "").removeprefix("http://").removesuffix("/health")


def fronting(gateway: Program, pending: Sequence[tuple[Program, Program]]) -> Program:
    """The gateway while the old one of each of these pairs still serves in the place of the new one.

    One of another name does not: its model is another.
    """
    stand_ins = {address(new): address(old) for old, new in pending if serves(old) == serves(new)}
    values = json.loads(gateway.stdin or b"{}")
    for model in values["models"]:
        for endpoint in model["endpoints"]:
            for new, old in stand_ins.items():
                endpoint["url"] = endpoint["url"].replace(f"//{new}/", f"//{old}/")
    return replace(gateway, stdin=json.dumps(values).encode())


def moved(engine: Program, to: Program) -> Program:
    """An engine at the address of another one, for which requests wait already."""
    before, after = (address(program).rpartition(":")[2] for program in (engine, to))
    argv = tuple(after if argument == before else argument for argument in engine.argv)
    return replace(engine, argv=argv, ready_url=to.ready_url, refit=None)


def notice(old: Program, *, others: int, took: float | None, patience: float) -> str:
    """What replacing an engine in its place means for those who ask it.

    Args:
        old: The engine that goes first.
        others: How many more serve its model meanwhile.
        took: Seconds of its last start; None where none was seen.
        patience: Seconds for which a request waits for an engine.
    """
    if others:
        return f"{serves(old)} is served by {others} of {others + 1} engines meanwhile"
    if took is None:
        return f"requests for {serves(old)} wait until the new engine is ready; after {patience:g} s they are refused"
    if took <= patience:
        return f"requests for {serves(old)} wait about {took:.0f} s: so long its last start took"
    return (
        f"requests for {serves(old)} wait until the new engine is ready, about {took:.0f} s as its last start took; "
        f"those that have waited {patience:g} s are refused with 503"
    )


def knows(gateway: Program, engine: Program) -> bool:
    """Whether an engine is one of a gateway's endpoints."""
    models = json.loads(gateway.stdin or b"{}")["models"]
    return any(f"//{address(engine)}/" in endpoint["url"] for model in models for endpoint in model["endpoints"])
