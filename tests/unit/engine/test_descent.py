import os
import subprocess
import sys

from engine.descent import family


def stat(proc, pid, parent, name="x"):
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1")


def test_a_family_is_all_below_whatever_they_are_called(tmp_path):
    for pid, parent, name in ((1, 0, "init"), (10, 1, "kvgate"), (11, 10, "a) S 1 ("), (12, 11, "b"), (13, 1, "other")):
        stat(tmp_path, pid, parent, name)
    assert family(10, tmp_path) == {10, 11, 12}


def test_a_child_of_this_process_is_of_its_family():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= family(os.getpid())
        child.communicate()
