"""Of an engine that served, errors of requests are not why it ended. Texts: vLLM 0.32.0 on a CPU, paths shortened."""

import signal

import pytest

from engine.diagnosis.log_cause import diagnose, read_log
from engine.diagnosis.serving import SERVING_ERRORS, of_the_end
from engine.diagnosis.sign import Kind
from engine.loglines import parse

BANNER = "(APIServer pid=1) INFO 11-22 08:04:00 [api_utils.py:1] vLLM API server version 0.32.0"
READY = "INFO:     Application startup complete."
ACCESS = 'INFO:     127.0.0.1:44206 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
BAD_CALL = [
    f"(APIServer pid=1) ERROR 11-22 08:06:09 [hermes_tool_parser.py:117] {text}"
    for text in (
        "Error in extracting tool call from response.",
        "Traceback (most recent call last):",
        '  File "vllm/tool_parsers/hermes_tool_parser.py", line 91, in extract_tool_calls',
        "    json.loads(match[0] if match[0] else match[1])",
        '  File "json/decoder.py", line 353, in raw_decode',
        "    obj, end = self.scan_once(s, idx)",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 2 column 2 (char 2)",
    )
]
ASGI = [
    "ERROR:    Exception in ASGI application",
    "Traceback (most recent call last):",
    '  File "uvicorn/protocols/http/httptools_impl.py", line 411, in run_asgi',
    "RuntimeError: Response content longer than Content-Length",
    ACCESS,
]
KILLED = [
    "(Worker pid=3) INFO 11-22 08:06:40 [multiproc_executor.py:843] Parent process exited, terminating worker queues",
    "(APIServer pid=1) WARNING 11-22 08:06:40 [core_client.py:817] [shutdown] MPClient: engine core exited",
    "(APIServer pid=1) ERROR 11-22 08:06:40 [async_llm.py:906] AsyncLLM output_handler failed.",
    "(APIServer pid=1) ERROR 11-22 08:06:40 [async_llm.py:906] Traceback (most recent call last):",
    "(APIServer pid=1) ERROR 11-22 08:06:40 [async_llm.py:906]     raise self._format_exception(outputs) from None",
    (
        "(APIServer pid=1) ERROR 11-22 08:06:40 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause."
    ),
    "INFO:     Shutting down",
]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
MOON = "ValueError: the moon is in the wrong house"


def core(at: str, *texts: str) -> list[str]:
    return [f"(EngineCore pid=2) ERROR 11-22 {at} [core.py:1500] {text}" for text in texts]


@pytest.mark.parametrize("errors", [BAD_CALL, ASGI, BAD_CALL * 3 + ASGI])
def test_an_engine_that_was_killed_did_not_end_for_a_clients_error(errors: list[str]) -> None:
    found = diagnose([*errors, *KILLED], 0, served=True)
    assert found.sign == "died without a word"
    assert "JSONDecodeError" not in str(found)


def test_a_kill_of_the_whole_engine_is_told_as_such() -> None:
    assert diagnose([*BAD_CALL, ACCESS], -signal.SIGKILL, served=True).sign == "killed"


@pytest.mark.parametrize("errors", [BAD_CALL, ASGI, core("08:05:00", MOON)])
def test_doctor_finds_nothing_wrong_with_an_engine_that_goes_on(errors: list[str]) -> None:
    later = "(APIServer pid=1) INFO 11-22 08:16:24 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s"
    assert read_log([BANNER, READY, *errors, later]) == []


def test_doctor_names_the_end_of_one_that_died_and_not_what_a_client_did() -> None:
    (found,) = read_log([BANNER, READY, *BAD_CALL, ACCESS, *KILLED])
    assert found.sign == "died without a word"


def test_what_the_engines_own_process_said_before_its_end_is_why() -> None:
    found = diagnose([*BAD_CALL, *core("08:06:39", OOM), *KILLED], 0, served=True)
    assert (found.sign, found.kind) == ("GPU out of memory", Kind.MEMORY)
    assert MOON in diagnose([*BAD_CALL, *core("08:06:39", MOON), *KILLED], 0, served=True).cause


def test_what_was_said_long_before_the_end_is_not_why() -> None:
    found = diagnose([*core("07:46:00", OOM), *KILLED], 0, served=True)
    assert found.sign == "died without a word"


def test_a_start_that_failed_is_read_whole() -> None:
    assert "JSONDecodeError" in diagnose(BAD_CALL, 1).cause


@pytest.mark.parametrize("source", ["hermes_tool_parser.py", "serving_chat.py", "serving.py", "api_router.py"])
def test_engines_that_name_no_process_are_told_by_their_files(source: str) -> None:
    assert of_the_end([parse(f"ERROR 11-22 08:06:09 [{source}:1] {MOON}")]) == []
    assert of_the_end([parse(f"ERROR 11-22 08:06:09 [core.py:1] {MOON}")]) != []


def test_every_serving_error_has_a_form() -> None:
    assert all(error.source != error.text for error in SERVING_ERRORS)


@pytest.mark.parametrize("at", ["99-99 99:99:99", "02-30 10:00:00"])
def test_a_time_that_is_none_hides_no_cause(at: str) -> None:
    """What a client sends may be printed as a line of its own."""
    log = [f"ERROR {at} [core.py:1] nothing", *core("10:00:00", "torch.OutOfMemoryError: CUDA out of memory.")]
    assert diagnose(log, 1, served=True).kind is Kind.MEMORY
