from unittest.mock import Mock

import pytest

from gateway.admission.events import Demand, RequestId, Verdict
from gateway.pools.counts import Counts
from gateway.relay.place import Place


def place(held):
    admission = Mock(counts=Counts())
    made = Place(admission, RequestId(1), Demand((5, 5), max_tokens=10))
    made._held = held
    return made, admission


def test_a_place_is_given_back_once():
    made, admission = place(held=True)
    made.release(Verdict.DONE, 3)
    made.release(Verdict.FAILED)
    assert admission.mock_calls == [(("finish"), (1, Verdict.DONE, 3, None), {})]


def test_where_none_is_held_nothing_is_given_back():
    made, admission = place(held=False)
    made.release(Verdict.FAILED)
    assert not admission.mock_calls


def test_the_owner_is_told_of_no_more_tokens_than_it_may_generate():
    made, admission = place(held=True)
    made.first_tokens(21)
    made.progress(21)
    made.release(Verdict.DONE, 21)
    assert admission.counts.moved == {1: 20}
    assert [call.args[1:] for call in admission.mock_calls] == [(20,), (Verdict.DONE, 20, None)]


@pytest.mark.parametrize("verdict", [Verdict.ABORTED, Verdict.DONE])
def test_an_answer_whose_tokens_nobody_knows_pays_all_it_may_have(verdict):
    made, admission = place(held=True)
    made.unread()
    made.release(verdict)
    assert admission.mock_calls == [(("finish"), (1, verdict, 20, None), {})]
