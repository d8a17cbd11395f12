"""Imports at the start of a process, without a search for garbage among them."""

import gc
import sys
from collections.abc import Sequence
from types import TracebackType

COLOURS = ("pygments", "rich")
"""What structlog and httpx import where they find it, and no process that serves uses: a tenth of a start, and 4 MB."""


class Importing:
    """While it is entered, nothing is searched for garbage; what is there afterwards stays, and is never searched.

    To search what is imported, and not to find anything, takes an eighth of a start. It imports nearly nothing, as
    `interrupts` does.

    Args:
        without: packages that are meanwhile as if not installed.
    """

    def __init__(self, without: Sequence[str] = ()) -> None:
        self._without = [package for package in without if package not in sys.modules]

    def __enter__(self) -> None:
        gc.disable()
        sys.modules.update(dict.fromkeys(self._without))  # type: ignore[arg-type]  # None: it cannot be imported

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for package in self._without:
            del sys.modules[package]
        gc.freeze()
        gc.enable()
