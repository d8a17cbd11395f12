from gateway.admission.prediction.spread import spread


def test_a_few_in_a_row_lie_in_all_parts_of_the_range():
    for first in range(0, 1000, 7):
        parts = sorted(int(spread(first + count) * 8) for count in range(20))
        assert set(parts) == set(range(8))
        assert all(parts.count(part) <= 4 for part in range(8))
