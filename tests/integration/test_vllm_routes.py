"""Every route of vLLM's own server is in our tables: served, or not served and why."""

import json
import os
import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

import httpx
import pytest

from gateway.relay.routes import NOT_SERVED, find
from tests.conftest import Vllm

pytestmark = pytest.mark.engine

_OURS = {"/health", "/metrics", "/version", "/docs", "/docs/oauth2-redirect", "/openapi.json", "/redoc"}
"""Answered by kvgate about itself, or FastAPI's."""
_SWITCHES = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ENABLE_COHERE_API")
_LIST = """
import json, typing
from unittest.mock import MagicMock
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.openai.api_server import build_app
from vllm.tasks import SupportedTask
from vllm.utils.argparse_utils import FlexibleArgumentParser
def literals(kind):
    return [one for inner in typing.get_args(kind) for one in literals(inner)] or [kind]
flags = ["--enable-tokenizer-info-endpoint", "--enable-scale-out"]
args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
app = build_app(args, tuple(literals(SupportedTask)), MagicMock())
print(json.dumps([[m, r.path] for r in app.routes for m in getattr(r, "methods", None) or ["WEBSOCKET"]]))
"""


def unknown(routes: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that no table names."""
    named = [path for paths, _ in NOT_SERVED for path in paths]
    return [
        (method, path)
        for method, path in routes
        if path not in _OURS
        and find(method, re.sub(r"\{\w+\}", "x", path)) is None
        and not any(fnmatchcase(path, name) for name in named)
    ]


def test_every_route_that_vllm_can_have_is_known(quick_python: Path) -> None:
    env = os.environ | dict.fromkeys(_SWITCHES, "1")
    run = subprocess.run([quick_python, "-c", _LIST], env=env, capture_output=True, text=True, check=True)
    routes = [(method, path) for method, path in json.loads(run.stdout.splitlines()[-1])]
    assert len(routes) >= 60
    assert unknown(routes) == []


def test_every_route_of_a_running_vllm_is_known(random_vllm: Vllm) -> None:
    paths = httpx.get(f"{random_vllm.url}/openapi.json", timeout=30).json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(routes) >= 20
    assert unknown(routes) == []


def test_a_new_route_would_be_noticed() -> None:
    assert unknown([("POST", "/v1/chat/completions"), ("POST", "/v1/new"), ("GET", "/sleep")]) == [("POST", "/v1/new")]
