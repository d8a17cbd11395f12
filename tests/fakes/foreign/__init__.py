"""Fakes of the engines that cannot be installed here, each a row of facts for one small server."""

from tests.fakes.foreign.facts import FACTS, LENGTH, MODEL, SLOTS, Facts
from tests.fakes.foreign.server import FakeEngine

__all__ = ["FACTS", "LENGTH", "MODEL", "SLOTS", "Facts", "FakeEngine"]
