"""The reader of traffic from any source: a kvgate's event log, a recorded trace, a running kvgate or vLLM."""

import time
from pathlib import Path

import httpx

from engine.asking import asking
from engine.plan.trace_file import read_trace
from engine.plan.traffic import Seen, Traffic, TrafficError, from_exposition, from_lengths
from gateway.config.fields import usable_key
from gateway.record.lines import EventLogError
from gateway.record.served import Served, recording

TIMEOUT = 10.0
"""Seconds a server has for an answer."""
_PEEK = 256
"""Bytes to read to tell an event log from a trace."""


def read_traffic(source: str, *, model: str | None = None, key: str | None = None) -> Traffic:
    """Read the figures of real requests.

    Args:
        source: a kvgate's event log, a trace as CSV (gzip-compressed or not), or the URL of a kvgate or a vLLM, with or
            without `/metrics`.
        model: only its requests, if an event log has several models.
        key: the bearer token for a URL. A kvgate with client keys requires its admin key.

    Raises:
        TrafficError: nothing can be read from the source. The message names it and what was expected.
    """
    if source.startswith(("http://", "https://")):
        return _running(source, key)
    file = Path(source)
    try:
        with file.open("rb") as opened:
            is_record = opened.read(_PEEK).lstrip().startswith(b"{")
    except OSError as error:
        raise TrafficError(
            f"{source}: cannot be read: {error.strerror}; expected a kvgate's event log, a trace (CSV), or a URL"
        ) from None
    return _recorded(file, model) if is_record else read_trace(file)


def lengths(source: str, requests: list[Served]) -> Traffic:
    """Traffic from a record's requests with complete answers."""
    return from_lengths(
        source,
        [
            Seen(
                at=one.dispatched_at,
                prompt=one.demand.longest_prompt,
                output=-(-one.generated // one.demand.sequences),
                duration=one.ended_at - one.dispatched_at,
                sequences=one.demand.sequences,
            )
            for one in requests
            if one.done and one.dispatched_at is not None and one.ended_at is not None
        ],
    )


def _recorded(file: Path, model: str | None) -> Traffic:
    try:
        found = recording(file)
    except EventLogError as error:
        raise TrafficError(str(error)) from None
    requests = [one for one in found.requests if model in {None, one.model}]
    if not requests:
        whose = "" if model is None else f" of the model {model}"
        raise TrafficError(f"{file}: expected requests{whose} in the event log, it has none")
    return lengths(str(file), requests)


def client_of(base: str) -> httpx.Client:
    """A client for paths of a server.

    Raises:
        TrafficError: this is no URL.
    """
    try:
        return asking(base, timeout=TIMEOUT)
    except httpx.InvalidURL as error:
        raise TrafficError(f"{base}: cannot be reached: {error}") from None


def fetch(client: httpx.Client, base: str, path: str, key: str | None) -> str:
    """Fetch a server's answer at a path.

    Raises:
        TrafficError: the server cannot be reached, or answers with an error.
    """
    address = f"{base}{path}"
    try:
        # Check the key first: the HTTP client's error about an unusable key would show it.
        headers = {"authorization": f"Bearer {usable_key(key)}"} if key else {}
    except ValueError as error:
        raise TrafficError(f"{address}: the admin key cannot be sent: {error}") from None
    try:
        answer = client.get(path, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TrafficError(f"{address}: cannot be reached: {str(error) or type(error).__name__}") from None
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise TrafficError(f"{address}: answered 401, it wants an admin key, and {_given(key)}")
    if not answer.is_success:
        raise TrafficError(f"{address}: expected a kvgate or a vLLM there, it answered {answer.status_code}")
    return answer.text


def _running(url: str, key: str | None) -> Traffic:
    base = url.rstrip("/").removesuffix("/metrics")
    with client_of(base) as client:
        exposed = fetch(client, base, "/metrics", key)
        return from_exposition(f"{base}/metrics", exposed, now=time.time(), longest=_longest(client))


def _given(key: str | None) -> str:
    return "none was given" if key is None else "not the one given"


def _longest(client: httpx.Client) -> int | None:
    """The most tokens of a request at this server, if it says so."""
    try:
        models = client.get("/v1/models").json()["data"]
        return max(int(each["max_model_len"]) for each in models)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
