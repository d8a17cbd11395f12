import sys

from loadtests.provenance import provenance


def test_a_command_is_told_without_the_password_in_a_url(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "peak", "--target", "a=http://me:secret@host:1/v1?x=a@b"])
    assert provenance()["command"] == ["python", "-m", "loadtests.run", "peak", "--target", "a=http://host:1/v1?x=a@b"]
