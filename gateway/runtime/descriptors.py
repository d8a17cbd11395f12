"""The limit on file descriptors: raise it, share it among clients, and recognise errors from a lack of them."""

import errno
import os
import resource

RESERVED = 128
"""Reserve for everything but clients: listening sockets, probes and scrapes, tokenizer downloads, logs."""
_OF_EACH = 3
"""Per client: its own connection, one to an endpoint, and on average less than one for counting."""
_LACK = frozenset({errno.EMFILE, errno.ENFILE})


class OutOfDescriptorsError(Exception):
    """kvgate, or its machine, has no descriptor left. The peer it was needed for is not at fault."""

    def __init__(self) -> None:
        super().__init__("kvgate is out of file descriptors: raise its limit (`ulimit -n`, `LimitNOFILE`)")


def raise_limit() -> int:
    """Raise the soft limit to the hard one and return it. vLLM does the same at its start."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def most_connections() -> int:
    """The most clients that may connect, so that descriptors remain for their requests."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - RESERVED) // _OF_EACH)


def lacking(error: BaseException) -> bool:
    """Whether an error, however deeply wrapped, comes from a lack of descriptors.

    While the lack lasts, any system error counts: a failed name lookup, for one, says so in each library's own words.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        if isinstance(found, OutOfDescriptorsError):
            return True
        if isinstance(found, OSError) and (found.errno in _LACK or _none_left()):
            return True
        seen.add(id(found))
        pending += [found.__cause__, found.__context__]
        pending += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
    return False


def _none_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in _LACK
    return False
