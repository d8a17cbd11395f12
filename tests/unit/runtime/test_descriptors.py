import errno
import resource

import httpx
import pytest

from gateway.runtime.descriptors import RESERVED, OutOfDescriptorsError, lacking, most_connections, raise_limit


def wrapped(error: Exception, *layers: type[Exception]) -> Exception:
    for layer in layers:
        outer = layer("wrapped")
        outer.__cause__ = error
        error = outer
    return error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_known_however_it_is_wrapped(number: int) -> None:
    lack = OSError(number, "Too many open files")
    assert lacking(lack)
    assert lacking(OutOfDescriptorsError())
    assert lacking(wrapped(lack, httpx.ConnectError, RuntimeError))
    assert lacking(ExceptionGroup("several", [OSError(errno.ECONNREFUSED, "refused"), wrapped(lack, OSError)]))


def test_any_other_error_is_none() -> None:
    for error in (OSError(errno.ECONNREFUSED, "refused"), ValueError(), wrapped(OSError(), httpx.ConnectError)):
        assert not lacking(error)
    cycle = ValueError()
    cycle.__context__ = wrapped(cycle, RuntimeError)
    assert not lacking(cycle)


def test_whatever_the_system_says_while_none_is_left_comes_from_that() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unnamed = wrapped(OSError(errno.EBUSY, "Device or resource busy"), httpx.ConnectError)
    assert not lacking(unnamed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        found = lacking(unnamed), lacking(ValueError())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == (True, False)


def test_the_limit_is_raised_as_far_as_it_goes_and_leaves_room_for_more_than_clients() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert 2 * most_connections() + RESERVED <= hard
