"""The arguments of an engine as vLLM's own parser reads them, against ours."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.arguments import FLAGS, ArgumentError, Arguments, Value
from tests.fakes.engine_arguments import Written, lines

pytestmark = pytest.mark.engine

_ASK = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

class Refused(Exception):
    pass

def refuse(message):
    raise Refused(message)

parser = make_arg_parser(FlexibleArgumentParser())
parser.error = refuse
texts = set(json.loads(sys.argv[1]))
for action in parser._actions:
    action.choices = None  # texts are to be compared, whatever they say
    if texts & set(action.option_strings):
        action.type = str
print(json.dumps({name: action.option_strings for name, action in parser._option_string_actions.items()}), flush=True)
for line in sys.stdin:
    try:
        read = vars(parser.parse_args(json.loads(line)))
    except (Refused, ValueError) as error:
        read = None
    print(json.dumps(read, default=repr), flush=True)
"""
_READ = [flag for flag in FLAGS if flag.name != "--config"]
"""`--config` names a file that is read at once."""


class Parser:
    """vLLM's parser, in its own interpreter."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.names: dict[str, list[str]] = self._answer()
        """The spellings of the flag that a spelling belongs to."""

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Its namespace; None where it refuses the words."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] | None = self._answer()
        return found

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def vllm_parser(quick_python: Path) -> Iterator[Parser]:
    texts = json.dumps([flag.name for flag in FLAGS if flag.value is Value.TEXT])
    with subprocess.Popen(
        [quick_python, "-c", _ASK, texts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield Parser(process)


def _ours(read: Arguments, name: str, value: Value) -> object:
    if value is Value.SWITCH:
        return read.switch(name)
    if value is Value.TEXT:
        return read.text(name)
    return read.fraction(name) if value is Value.FRACTION else read.integer(name)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines(_READ))
def test_every_spelling_is_read_as_vllm_reads_it(vllm_parser: Parser, line: list[Written]) -> None:
    words = [word for written in line for word in written.words]
    theirs, ours = vllm_parser.read(words), Arguments.parse(words)
    assert theirs is not None
    for flag in FLAGS:
        if flag.name in ours.flags:
            found = theirs[flag.name.removeprefix("--").replace("-", "_")]
            assert _ours(ours, flag.name, flag.value) == (found[0] if isinstance(found, list) else found)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flag=st.sampled_from([flag for flag in FLAGS if flag.value not in {Value.TEXT, Value.SWITCH}]),
    value=st.from_regex(r"-?[0-9]{1,3}(\.[0-9])?[kKmMgGtTx]?|auto|1e3| 7 |1_0", fullmatch=True),
)
def test_a_number_is_refused_where_vllm_refuses_it(vllm_parser: Parser, flag: Any, value: str) -> None:
    words = [f"{flag.name}={value}"]
    theirs, ours = vllm_parser.read(words), Arguments.parse(words)
    if theirs is None:
        with pytest.raises(ArgumentError):
            ours.check()
    else:
        ours.check()
        assert _ours(ours, flag.name, flag.value) == theirs[flag.name.removeprefix("--").replace("-", "_")]


def test_the_table_has_vllms_spellings(vllm_parser: Parser) -> None:
    for flag in FLAGS:
        theirs = set(vllm_parser.names[flag.name]) - {f"--no-{flag.name.removeprefix('--')}"}
        assert theirs == {flag.name, *flag.aliases}


def test_an_abbreviation_is_what_vllm_takes_it_for(vllm_parser: Parser) -> None:
    ours = {flag.name for flag in FLAGS}
    for name, spellings in vllm_parser.names.items():
        (flag,) = Arguments.parse([name]).flags
        full = f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else spellings[0]
        assert flag == (full if full in ours else f"--{name.removeprefix('--no-')}" if "--no-" in name else name)
        for length in range(4, len(name)):
            begun = [other for other in vllm_parser.names if other.startswith(name[:length])]
            if begun == [name] and full in ours:
                assert Arguments.parse([name[:length]]).flags == {full}
