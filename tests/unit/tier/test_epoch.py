from gateway.tier.epoch import BEFORE_ALL, Epoch


def test_epochs_are_ordered_by_number_then_by_owner():
    assert BEFORE_ALL < Epoch(1, "b") < Epoch(1, "c") < Epoch(2, "a") < Epoch(10, "a")
    assert str(Epoch(2, "a")) == "2.a"
