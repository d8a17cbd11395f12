from loadtests.workload import Workload


def test_arrivals_are_the_same_for_the_same_seed_only():
    workload = Workload()
    assert workload.arrivals(1) == workload.arrivals(1)
    assert workload.arrivals(1) != workload.arrivals(2)


def test_arrivals_keep_to_their_ranges_and_rate():
    workload = Workload(requests=2000, rate=50)
    arrivals = workload.arrivals(3)
    assert all(100 <= len(arrival.prompt) <= 200 and 300 <= arrival.output_tokens <= 600 for arrival in arrivals)
    assert 35 < arrivals[-1].at < 45
