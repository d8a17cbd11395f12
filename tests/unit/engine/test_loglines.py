import pytest

from engine.loglines import LogLine, parse


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            "(EngineCore pid=7) INFO 11-20 18:04:28 [core.py:133] Initializing",
            LogLine("INFO", "Initializing", "EngineCore pid=7", "core.py", "11-20 18:04:28"),
        ),
        (
            "(Worker pid=9) ERROR 11-20 18:11:05 [x.py:1] ValueError: no",
            LogLine("ERROR", "ValueError: no", "Worker pid=9", "x.py", "11-20 18:11:05"),
        ),
        ("(Worker_TP0 pid=9) ValueError: no", LogLine(None, "ValueError: no", "Worker_TP0 pid=9")),
        (
            "WARNING 01-02 03:04:05 [vllm.py:725] careful",
            LogLine("WARNING", "careful", "", "vllm.py", "01-02 03:04:05"),
        ),
        (
            "\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO 11-20 18:04:19 [a.py:1] hello",
            LogLine("INFO", "hello", "APIServer pid=1", "a.py", "11-20 18:04:19"),
        ),
        (
            "ERROR 03-19 10:48:40 worker_base.py:467] old",
            LogLine("ERROR", "old", "", "worker_base.py", "03-19 10:48:40"),
        ),
        ("[rank0]: ValueError: no", LogLine(None, "ValueError: no", "rank0")),
        ("INFO:     Application startup complete.", LogLine(None, "INFO:     Application startup complete.")),
        ("(not a process prefix", LogLine(None, "(not a process prefix")),
        ("", LogLine(None, "")),
    ],
)
def test_prefixes_are_taken_off(raw: str, expected: LogLine) -> None:
    assert parse(raw) == expected
