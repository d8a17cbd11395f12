import random
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.events import RequestId
from gateway.pools.counts import Counts

ONE, TWO = RequestId(1), RequestId(2)


def counts_of(**noted):
    """Counts of a batch that was told: `counts_of(r1=5)`."""
    counts = Counts()
    for name, generated in noted.items():
        counts.moved[RequestId(int(name[1:]))] = generated
    counts.batch()
    return counts


def test_a_batch_has_who_moved_with_the_latest_counts_and_ends_itself():
    counts = Counts()
    for request, generated in ((ONE, 1), (TWO, 1), (ONE, 2)):
        counts.moved[request] = generated
    assert counts.batch() == ([ONE, TWO], {ONE: 2, TWO: 1})
    assert counts.batch() == ([], {})


def test_who_was_told_is_told_again_when_the_core_wants_to_hear():
    counts = counts_of(r1=1)
    counts.want({ONE: 7}, everything=False)
    counts.moved[ONE] = 6
    assert counts.batch() == ([ONE], {}), "it moved, but that changes no account"
    counts.moved[ONE] = 7
    assert counts.batch() == ([ONE], {ONE: 7})


def test_until_the_core_has_said_what_it_wants_every_count_is_told():
    counts = counts_of(r1=1)
    counts.moved[ONE] = 2
    assert counts.batch() == ([ONE], {ONE: 2})


def test_the_core_may_want_everything_for_a_while():
    counts = counts_of(r1=1, r2=1)
    counts.want({ONE: 7, TWO: 7}, everything=True)
    counts.moved[ONE] = 2
    assert counts.batch() == ([ONE], {ONE: 2})
    counts.want({ONE: 7}, everything=False)
    counts.moved[ONE] = 3
    assert counts.batch() == ([ONE], {})


def test_everything_may_be_wanted_without_a_word_of_any_request():
    counts = counts_of(r1=1)
    counts.want({ONE: 7}, everything=False)
    counts.want({}, everything=True)
    counts.moved[ONE] = 2
    assert counts.batch() == ([ONE], {ONE: 2})


def test_what_was_not_told_is_known_until_it_leaves():
    counts = counts_of(r1=1, r2=1)
    counts.want({ONE: 7, TWO: 7}, everything=False)
    counts.moved[ONE] = 4
    counts.batch()
    counts.moved[TWO] = 5
    assert counts.unheard() == {ONE: 4, TWO: 5}
    assert (counts.latest(ONE), counts.latest(TWO), counts.latest(RequestId(3))) == (4, 5, 0)
    assert counts.forget(ONE) == (4, 7)
    assert counts.forget(TWO) == (5, 7)
    assert counts.unheard() == {}
    assert counts.forget(ONE) == (None, 0)


def test_the_latest_count_is_that_since_the_last_batch():
    counts = counts_of(r1=1)
    counts.want({ONE: 7}, everything=False)
    counts.moved[ONE] = 4
    counts.batch()
    counts.moved[ONE] = 6
    assert counts.latest(ONE) == 6
    assert counts.unheard() == {ONE: 6}
    assert counts.forget(ONE) == (6, 7)


def test_a_count_that_was_told_is_not_unheard_though_an_earlier_one_was_kept():
    counts = counts_of(r1=1)
    counts.want({ONE: 7}, everything=False)
    for generated in (4, 8):
        counts.moved[ONE] = generated
        counts.batch()
    assert counts.unheard() == {}
    assert counts.latest(ONE) == 0
    assert counts.forget(ONE) == (None, 7)


def test_once_renewed_each_next_count_is_told_until_the_core_has_said_what_it_wants():
    counts = counts_of(r1=1, r2=1)
    counts.want({ONE: 7, TWO: 23}, everything=False)
    counts.renew()
    counts.moved[ONE] = 2
    counts.moved[TWO] = 2
    assert counts.batch() == ([ONE, TWO], {ONE: 2, TWO: 2})
    counts.want({ONE: 9}, everything=False)
    counts.moved[ONE] = 8
    counts.moved[TWO] = 3
    assert counts.batch() == ([ONE, TWO], {TWO: 3})


def test_what_the_core_wants_of_a_request_that_has_left_is_not_kept():
    counts = counts_of(r1=1, r2=1)
    counts.forget(ONE)
    counts.want({ONE: 7, TWO: inf}, everything=False)
    assert counts.next_reports == {TWO: inf}


@given(seed=st.integers(0, 2**32))
def test_nothing_is_kept_of_who_has_left_and_no_count_is_lost(seed):
    """What was told of a request and what is unheard of it are together its last count."""
    choose, counts = random.Random(seed), Counts()  # noqa: S311  # a reproducible choice
    last, heard = {}, {}
    for _ in range(100):
        request = RequestId(choose.randrange(6))
        match choose.randrange(5):
            case 0 | 1:
                last[request] = last.get(request, 0) + choose.randrange(1, 9)
                counts.moved[request] = last[request]
            case 2:
                moved, told = counts.batch()
                assert told.keys() <= set(moved)
                heard.update(told)
                late = {request: 0} if choose.random() < 0.3 else {}
                counts.want({**{key: n + 10 for key, n in told.items()}, **late}, everything=choose.random() < 0.2)
            case 3:
                generated, _ = counts.forget(request)
                assert max(generated or 0, heard.pop(request, 0)) == last.pop(request, 0)
            case 4 if choose.random() < 0.3:
                heard.update(counts.unheard())
                counts.renew()
        unheard = counts.unheard()
        assert {key: max(heard.get(key, 0), unheard.get(key, 0)) for key in last} == last
        assert all(counts.latest(key) in {0, n} or counts.latest(key) <= heard[key] for key, n in last.items())
    for request in list(last):
        counts.forget(request)
    assert counts.unheard() == {}
    assert counts.next_reports == {}
