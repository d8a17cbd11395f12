"""File descriptors: as many as the machine gives, and what a lack of them is evidence of: nothing but itself."""

import errno
import resource

RESERVED = 128
"""For what is no client's: listening sockets, probes and scrapes, tokenizers on their way, logs."""
_OF_EACH = 3
"""For each client: its own connection, one to an endpoint, and on the average less than one to have it counted."""
_LACK = frozenset({errno.EMFILE, errno.ENFILE})


class OutOfDescriptorsError(Exception):
    """kvgate, or the machine it runs on, has no descriptor left: whoever it was needed for has no part in that."""

    def __init__(self) -> None:
        super().__init__("kvgate is out of file descriptors: raise its limit (`ulimit -n`, `LimitNOFILE`)")


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns it. vLLM does the same with its own, when it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def most_connections() -> int:
    """How many clients may be connected, so that descriptors remain for what they ask for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, (soft - RESERVED) // _OF_EACH)


def lacking(error: BaseException) -> bool:
    """Whether an error comes from a lack of descriptors, however often it was wrapped."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        if isinstance(found, OutOfDescriptorsError) or (isinstance(found, OSError) and found.errno in _LACK):
            return True
        seen.add(id(found))
        pending += [found.__cause__, found.__context__]
        pending += found.exceptions if isinstance(found, BaseExceptionGroup) else ()
    return False
