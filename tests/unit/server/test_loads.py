import subprocess
import sys

from gateway.server.loads import Loads


def another(path, connections):
    """A front in a process of its own that has so many connections; it ends when its standard input does."""
    code = (
        "import sys; from pathlib import Path; from gateway.server.loads import Loads; "
        f"l = Loads(Path(sys.argv[1])); l.note({connections}); print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child


def test_a_front_knows_whether_another_has_fewer(tmp_path):
    path = tmp_path / "loads"
    here = Loads(path)
    here.note(5)
    assert not here.fewer_elsewhere(5), "it is alone"
    with another(path, 3) as child:
        assert here.fewer_elsewhere(5)
        assert not here.fewer_elsewhere(3), "as many are not fewer"
        child.kill()
        child.wait()
        assert not here.fewer_elsewhere(5), "the dead accept nothing"


def test_one_that_leaves_counts_no_more(tmp_path):
    path = tmp_path / "loads"
    here, other = Loads(path), Loads(path)
    assert here.fewer_elsewhere(1)
    other.leave()
    assert not here.fewer_elsewhere(1)


def test_the_place_of_the_dead_is_taken_by_the_next(tmp_path):
    path = tmp_path / "loads"
    with another(path, 3) as child:
        child.kill()
        child.wait()
    for _ in range(3):
        Loads(path).leave()
    here = Loads(path)
    assert here._mine == 0
    assert path.stat().st_mode & 0o777 == 0o600
