from engine.plan.quality import Quality


def test_it_is_what_the_command_line_calls_it():
    assert [str(one) for one in Quality] == ["kv-cache", "weights"]
