"""Raw requests to a real nginx and to kvgate: both accept or refuse the same, and a server behind sees the same.

The differences that are meant are a table, `accepted.py`. Clients that half-close are treated alike: both answer them
what they answer themselves, and take their requests off the server behind.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.stack import find_nginx
from tests.integration.http_cases.accepted import DIFFERENCES, covers
from tests.integration.http_cases.cases import Case, cases
from tests.integration.http_cases.fronts import Front, Result, kvgate, nginx

pytestmark = pytest.mark.network

AT_ONCE = 16
"""Cases."""
PATIENCE = (1.0, 3.0, 10.0, 60.0)
"""A machine that is busy answers late: what seems to differ is tried again with more time."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A case, what nginx did with it, and what kvgate did."""

    number: int
    case: Case
    nginx: Result
    kvgate: Result

    def explained(self) -> bool:
        """Whether a row of the table says that they differ, and in that way."""
        return any(row.covers(self.case.name) and not (row.refused and self.kvgate.seen) for row in DIFFERENCES)


async def test_kvgate_understands_http_as_nginx_does_but_for_what_is_meant(tmp_path: Path) -> None:
    left = list(enumerate(cases()))
    assert len(left) >= 300
    meant: set[str] = set()
    unmeant: list[Compared] = []
    async with nginx(find_nginx(), tmp_path) as reference, kvgate() as ours:
        for patience in PATIENCE:
            differing = await compared(reference, ours, left, patience)
            meant |= {one.case.name for one in differing if one.explained()}
            unmeant = [one for one in differing if not one.explained()]
            left = [(one.number, one.case) for one in unmeant]
        assert reference.echo.strays == ours.echo.strays == []
    assert not unmeant, "\n".join(map(str, unmeant))
    stale = [name for row in DIFFERENCES for name in row.cases if not any(covers(name, case) for case in meant)]
    assert not stale, "rows of `accepted.py` in which kvgate does as nginx"


async def compared(reference: Front, ours: Front, some: Iterable[tuple[int, Case]], patience: float) -> list[Compared]:
    """Those that do not end alike."""
    places = asyncio.Semaphore(AT_ONCE)

    async def both(number: int, case: Case) -> Compared:
        async with places:
            return Compared(
                number,
                case,
                *await asyncio.gather(reference.send(case, number, patience), ours.send(case, number, patience)),
            )

    done = await asyncio.gather(*(both(number, case) for number, case in some))
    return [one for one in done if one.nginx != one.kvgate]
