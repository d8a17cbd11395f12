"""Imports at the start of a process, without a search for garbage among them."""

import gc
from types import TracebackType


class Importing:
    """While it is entered, nothing is searched for garbage; what is there afterwards stays, and is never searched.

    To search what is imported, and not to find anything, takes an eighth of a start. It imports nearly nothing, as
    `interrupts` does.
    """

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.freeze()
        gc.enable()
