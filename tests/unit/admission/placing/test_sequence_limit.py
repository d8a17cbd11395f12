from gateway.admission.placing.sequence_limit import SequenceLimit
from tests.unit.admission.playbook import scrape


def learn(*samples, configured=None, sequences=0, computed=0, just_sent=0):
    """A limit after scrapes `(running, waiting, kv)`, one a second. It computes the prompts of `computed` that run."""
    limit = SequenceLimit(configured, kv_low=0.8)
    for second, (running, waiting, kv) in enumerate(samples):
        sample = scrape("a", float(second), kv=kv, running=running, waiting=waiting)
        limit.observe(sample, sequences, unconfirmed=(waiting or 0) + computed, just_sent=just_sent)
    return limit


def test_a_configured_limit_stands():
    limit = learn((4, 9, 0.1), (4, 9, 0.1), configured=100)
    assert (limit.value, limit.learned) == (100, False)


def test_a_plateau_while_requests_wait_and_there_is_room_is_the_limit():
    limit = learn((16, 0, 0.2), (16, 3, 0.2), (16, 5, 0.2))
    assert (limit.value, limit.learned) == (16, True)


def test_one_sample_is_no_plateau():
    assert learn((16, 3, 0.2)).value is None
    assert learn((16, 3, 0.2), (16, 3, 0.2)).value is None, "the first raised what it ever ran"
    assert learn((15, 3, 0.2), (16, 3, 0.2)).value is None


def test_where_nobody_waits_or_the_cache_is_full_nothing_is_learned():
    assert learn(*[(16, 0, 0.2)] * 3).value is None
    assert learn(*[(16, 3, 0.85)] * 3).value is None
    assert learn(*[(16, 3, None)] * 3).value is None
    assert learn(*[(None, 3, 0.1)] * 3).value is None


def test_one_that_runs_alone_while_others_wait_is_no_plateau():
    """Those that follow a long prompt wait for its end. Were one the limit, half a minute would run one by one."""
    assert learn((1, 3, 0.1), (1, 3, 0.1), (1, 2, 0.1)).value is None


def test_none_is_learned_while_a_prompt_is_computed():
    """Those that follow a prompt which fills the batch wait for its end, however many run."""
    assert learn(*[(5, 3, 0.2)] * 9, computed=1).value is None
    assert learn(*[(5, 3, 0.2)] * 3, computed=0).value == 5


def test_more_seen_running_refutes_it():
    refuted = *[(16, 3, 0.2)] * 3, (17, 0, 0.3)
    assert learn(*refuted[:-1]).value == 16
    assert learn(*refuted).value is None
    assert learn(*refuted, (17, 3, 0.3), (17, 1, 0.3)).value == 17


def test_no_plateau_below_what_it_ran_before_is_a_limit():
    assert learn((24, 0, 0.7), *[(16, 1, 0.5)] * 3).value is None


def test_what_was_just_sent_may_wait_for_the_end_of_a_step():
    assert learn(*[(16, 2, 0.2)] * 9, just_sent=2).value is None
    assert learn(*[(16, 3, 0.2)] * 3, just_sent=2).value == 16


def test_requests_just_sent_do_not_lower_it():
    just_sent = (15, 1, 0.5), (15, 1, 0.5)
    assert learn(*[(16, 3, 0.2)] * 3, *just_sent, *just_sent, sequences=16).value == 16


def test_a_limit_that_nobody_contradicts_is_tried_again():
    plateau = [(16, 3, 0.2)] * 3
    full = [(16, 0, 0.2)] * 31
    assert learn(*plateau, *full[:-1], sequences=16).value == 16
    assert learn(*plateau, *full, sequences=16).value == 17
    assert learn(*plateau, *full, sequences=15).value == 17, "one place may be kept free"
    assert learn(*plateau, *full, sequences=14).value == 16, "nothing pressed against it"
    assert learn(*plateau, *full, (17, 0, 0.2), sequences=17).value is None, "it was none"


def test_a_true_limit_shows_itself_anew_and_is_tried_ever_more_rarely():
    samples, trials = [(16, 3, 0.2)] * 3, []
    for pause in (31, 61, 121, 241, 481, 601, 601):
        samples += [(16, 0, 0.2)] * pause
        trials.append((learn(*samples[:-1], sequences=16).value, learn(*samples, sequences=16).value))
        samples += [(16, 1, 0.2)]
        assert learn(*samples, sequences=16).value == 16, "one scrape is enough"
    assert trials == [(16, 17)] * 7


def test_a_higher_limit_is_tried_as_soon_as_a_first_one():
    failed = [(16, 3, 0.2)] * 3 + [(16, 0, 0.2)] * 31 + [(16, 1, 0.2)]
    higher = [(20, 3, 0.2)] * 3
    assert learn(*failed, *higher, *[(20, 0, 0.2)] * 31, sequences=20).value == 21
