import pytest

from gateway.runtime.failure import USAGE_ERROR, fail


def test_each_line_of_an_error_is_kvgates_on_standard_error(capsys):
    with pytest.raises(SystemExit) as ended:
        fail("the port is taken\nname another")
    assert ended.value.code == USAGE_ERROR
    assert capsys.readouterr() == ("", "kvgate: the port is taken\nkvgate: name another\n")
