from gateway.admission.level import HIGHEST, LOWEST, SETTLING, SPAN, START, Level


def test_it_starts_a_little_above_the_middle():
    assert Level(0.96).value == START


def test_a_preemption_raises_it_once_until_that_has_shown():
    level = Level(0.96)
    level.observe(0.5, 3, 0.0, holding=False)
    assert level.value == START  # those before were not ours to prevent
    level.observe(0.5, 4, 1.0, holding=False)
    raised = level.value
    assert START < raised < HIGHEST
    level.observe(0.5, 9, 2.0, holding=False)
    assert level.value == raised
    level.observe(0.5, 10, 1.0 + SETTLING, holding=False)
    assert raised < level.value < HIGHEST


def test_so_does_a_full_cache():
    level = Level(0.96)
    level.observe(1.0, None, 0.0, holding=True)
    assert level.value > START


def test_work_held_back_from_a_cache_with_room_at_its_fullest_lowers_it_slowly_to_a_bound():
    level = Level(0.96)
    for second in range(int(SPAN) + 1):
        level.observe(0.5, 0, float(second), holding=True)
    assert START - 0.1 < level.value < START
    for second in range(1000):
        level.observe(0.5, 0, 100.0 + second, holding=True)
    assert level.value == LOWEST


def test_one_full_moment_in_a_span_keeps_it():
    level = Level(0.96)
    for second in range(200):
        level.observe(0.96 if second % 10 == 0 else 0.6, 0, float(second), holding=True)
    assert level.value == START


def test_an_endpoint_that_holds_nobody_back_teaches_nothing():
    level = Level(0.96)
    for second in range(100):
        level.observe(0.3, 0, float(second), holding=False)
    assert level.value == START
