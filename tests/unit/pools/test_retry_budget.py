from gateway.pools.retry_budget import ALWAYS, WINDOW, RetryBudget

ALLOWED = int(ALWAYS * WINDOW)


def taken(budget, tries, share=0.2, now=0.0):
    return sum(budget.take(share, now) for _ in range(tries))


def test_a_share_of_the_requests_may_be_sent_again_and_a_few_beside():
    budget = RetryBudget()
    assert taken(budget, 1000) == ALLOWED, "few requests do not forbid every retry"
    for _ in range(100):
        budget.sent(0.5)
    assert taken(budget, 1000, now=0.9) == 20
    assert taken(budget, 1000, share=0.5, now=0.9) == 30, "the share of now counts"


def test_requests_and_retries_count_for_ten_seconds():
    budget = RetryBudget()
    for second in range(30):
        for _ in range(50):
            budget.sent(second)
    assert taken(budget, 1000, now=29.0) == 100 + ALLOWED
    assert taken(budget, 1000, now=38.0) == 0
    assert taken(budget, 1000, now=39.0) == ALLOWED


def test_none_is_none():
    assert taken(RetryBudget(), 10, share=0.0) == 0
