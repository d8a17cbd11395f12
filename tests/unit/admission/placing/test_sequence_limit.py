from gateway.admission.placing.sequence_limit import SequenceLimit
from tests.unit.admission.playbook import scrape


def learn(*samples, configured=None, sequences=0):
    """A limit after scrapes `(running, waiting, kv)`, one a second."""
    limit = SequenceLimit(configured, kv_low=0.8)
    for second, (running, waiting, kv) in enumerate(samples):
        limit.observe(scrape("a", float(second), kv=kv, running=running, waiting=waiting), sequences)
    return limit


def test_a_configured_limit_stands():
    limit = learn((4, 9, 0.1), (4, 9, 0.1), configured=100)
    assert (limit.value, limit.learned) == (100, False)


def test_a_plateau_while_requests_wait_and_there_is_room_is_the_limit():
    limit = learn((16, 3, 0.2), (16, 5, 0.2))
    assert (limit.value, limit.learned) == (16, True)


def test_one_sample_is_no_plateau():
    assert learn((16, 3, 0.2)).value is None
    assert learn((15, 3, 0.2), (16, 3, 0.2)).value is None


def test_where_nobody_waits_or_the_cache_is_full_nothing_is_learned():
    assert learn((16, 0, 0.2), (16, 0, 0.2)).value is None
    assert learn((16, 3, 0.85), (16, 3, 0.85)).value is None
    assert learn((16, 3, None), (16, 3, None)).value is None
    assert learn((None, 3, 0.1), (None, 3, 0.1)).value is None


def test_one_that_runs_alone_while_others_wait_is_no_plateau():
    """Those that follow a long prompt wait for its end. Were one the limit, half a minute would run one by one."""
    assert learn((1, 3, 0.1), (1, 3, 0.1), (1, 2, 0.1)).value is None


def test_more_seen_running_refutes_it():
    refuted = (16, 3, 0.2), (16, 3, 0.2), (17, 0, 0.3)
    assert learn(*refuted).value is None
    assert learn(*refuted, (17, 3, 0.3), (17, 1, 0.3)).value == 17


def test_no_plateau_below_what_it_ran_before_is_a_limit():
    assert learn((24, 0, 0.7), (16, 1, 0.5), (16, 1, 0.5)).value is None


def test_requests_just_sent_do_not_lower_it():
    just_sent = (15, 1, 0.5), (15, 1, 0.5)
    assert learn((16, 3, 0.2), (16, 3, 0.2), *just_sent, *just_sent, sequences=16).value == 16


def test_a_limit_that_nobody_contradicts_is_tried_again():
    plateau = [(16, 3, 0.2), (16, 3, 0.2)]
    full = [(16, 0, 0.2)] * 31
    assert learn(*plateau, *full[:-1], sequences=16).value == 16
    assert learn(*plateau, *full, sequences=16).value == 18
    assert learn(*plateau, *full, sequences=15).value == 16, "nothing pressed against it"


def test_a_true_limit_shows_itself_anew_after_a_trial():
    limit = learn(*[(16, 3, 0.2)] * 2, *[(16, 0, 0.2)] * 31, *[(16, 2, 0.2)] * 2, sequences=16)
    assert limit.value == 16
