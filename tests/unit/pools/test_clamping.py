import json

import pytest

from gateway.endpoints.identity import Identity
from gateway.pools.clamping import clamps
from gateway.tokens.engine_count import Target, UnansweredError

WHO = Identity(names=("m",), loras=(), root=None, max_model_len=100, version=None)
TOO_LONG = "This model's maximum context length is 100 tokens. However, you requested 101 tokens (1 in the messages)."


def error(message):
    return json.dumps({"object": "error", "message": message, "code": 400}).encode()


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, b"data: {}\n\n", True),
        (400, error(TOO_LONG), False),
        (400, json.dumps({"error": {"message": TOO_LONG}}).encode(), False),
        (400, error("allowed_token_ids is not supported"), None),
        (401, b"", None),
        (404, error(TOO_LONG), None),
        (503, b"", None),
    ],
)
async def test_an_engine_is_asked_for_one_token_too_many(status, body, found):
    asked = []

    async def ask(path, question, **_limits):
        asked.append((path, json.loads(question)))
        return status, body

    assert await clamps(Target("http://engine", ask), WHO) is found
    ((path, question),) = asked
    assert (path, question["model"]) == ("/v1/completions", "m")
    assert len(question["prompt"]) + question["max_tokens"] == 101
    assert question["allowed_token_ids"] == question["stop_token_ids"], "it ends with its first token"


async def test_no_answer_tells_nothing():
    async def silent(*_asked, **_limits):
        raise UnansweredError("gone")

    assert await clamps(Target("http://engine", silent), WHO) is None
