"""What a template that takes the square of a conversation's length may cost the process that counts large bodies."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.tokens.pool import LONGEST, _in_process
from tests.fakes.tokenizer import make_tokenizer
from tests.security.target import Answer, Target, attacked, request

pytestmark = pytest.mark.slow

MB = 1 << 20
CHAT, BATCH, EXPLAIN = "/v1/chat/completions", "/v1/chat/completions/batch", "/kvgate/explain"
SQUARE = (
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{% set ns.system = ns.system + '\n\n' + message['content'] %}"
    "{% endif %}{% endfor %}{{ ns.system }}"
)
"""As the template of DeepSeek V3 puts its system messages together."""
CUBE = (
    "{% if messages[0]['role'] == 'user' %}"
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}{% endfor %}"
    "{% endif %}"
)
"""A small conversation takes what only a large one takes of the other."""
MESSAGE = {"role": "system", "content": "x" * 20}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    with attacked(folder, SQUARE + CUBE, tmp_path_factory.mktemp("kvgate") / "log") as target:
        assert target.post(CHAT, asked([MESSAGE] * 2000)).status in (200, 400), "its counting process is there"
        yield target


def asked(messages: list[object]) -> bytes:
    fields = {"model": "fake", "messages": messages, "truncate_prompt_tokens": 5, "max_tokens": 1}
    return json.dumps(fields).encode()


def counting_seconds(target: Target) -> float:
    """CPU seconds so far of the processes that count."""
    ticks = 0
    for task in Path(f"/proc/{target.process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("path", [CHAT, EXPLAIN])
def test_a_client_that_leaves_ends_the_rendering_of_its_prompt(target: Target, path: str) -> None:
    before = counting_seconds(target)

    def taken() -> float:
        return counting_seconds(target) - before

    target.leave(path, asked([MESSAGE] * (8 * MB // 56)), once=lambda: taken() > 1)
    left, last = taken(), -1.0
    while taken() > last:  # as long as it is being counted; to the end that takes more than LONGEST
        last = taken()
        time.sleep(1)
    print(f"{path}: {left:.1f} s when its client had left, {last:.1f} s in the end")
    assert last - left < LONGEST / 10


def test_a_batch_has_no_more_time_than_one_conversation(target: Target) -> None:
    def cube(messages: int) -> list[object]:
        return [{"role": "user", "content": "x"}] * messages

    def counted(path: str, body: bytes) -> tuple[Answer, float]:
        before = counting_seconds(target)
        got = target.send(request("POST", path, body), body, timeout=400)
        return got, counting_seconds(target) - before

    _, small = counted(CHAT, asked(cube(300)))
    body = asked([cube(round(300 * (4 / small) ** (1 / 3)))] * 4)  # 4 s each
    most = _in_process(len(body))
    got, taken = counted(BATCH, body)
    print(f"a batch of four: {got.status} after {taken:.1f} s of {most:.1f} s")
    assert 4 < most < 8, "time for one"
    assert got.status == 400
    assert b"too much to count" in got.body
    assert taken < most + 2
