from gateway.runtime.shares import Shares


def shares(most, **held):
    made = Shares(lambda: most)
    for flow, amount in held.items():
        made.add(flow, amount)
    return made


def test_the_first_may_hold_all_of_it_and_nothing_more():
    assert shares(10).takes("a", 10)
    assert not shares(10).takes("a", 11)


def test_one_flow_gets_at_most_half_of_what_the_others_leave():
    assert shares(100, a=40).takes("a", 10)
    assert not shares(100, a=40).takes("a", 11)
    assert shares(100, a=50).takes("b", 25)
    assert not shares(100, a=50).takes("b", 26)
    assert not shares(100, a=50, b=20).takes("a", 1)


def test_what_is_given_back_is_free_again():
    held = shares(100, a=50, b=30)
    held.add("b", -30)
    held.add("a", -50)
    assert held.held == 0
    assert held.takes("c", 100)
    assert not held._of_flow, "flows that hold nothing take no memory"


def test_a_bound_that_changes_counts_at_once():
    most = 100
    held = Shares(lambda: most)
    held.add("a", 40)
    most = 50
    assert not held.takes("a", 10)
    assert held.takes("b", 5)
