"""The check of a vLLM or a kvgate through its URL, as a client sees it: does it answer, run well and stream?"""

import contextlib
import json
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from engine.asking import asking
from engine.diagnosis import at_work, streaming
from engine.diagnosis.look import starting
from engine.diagnosis.model import Examined
from engine.diagnosis.sign import Diagnosis, Kind
from engine.diagnosis.streaming import Arrivals, Flow
from engine.diagnosis.way import is_local, proxy_between
from engine.plan.samples import Samples

PATIENCE = 30.0
"""Seconds of silence after which a stream is given up."""
_LENGTHS = (64, 512)
"""Tokens to ask for: more if the first answer was too fast to judge."""
_HTTP = 80
_GATEWAY_ERRORS = {502, 503, 504}
_ERROR = re.compile(rb'\{"error": ?\{.*')
_EVENT = re.compile(rb"^data: ?+(?!\[DONE\])", re.MULTILINE)


def examine(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    admin_key: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Examined:
    """Check a server in every way. It generates one short answer to show how it streams.

    Args:
        url: Base URL, with or without `/v1`.
        model: The model whose answer to stream; by default the first one it serves.
        api_key: Key for `/v1`.
        admin_key: A kvgate's admin key, for its state.
        clock: Returns seconds.
    """
    base = url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with asking(base, timeout=PATIENCE, headers=headers, redirects=True) as client:
        try:
            health = client.get("/health")
        except httpx.InvalidURL as error:
            return Examined((), (_finding(f"{url} is no URL: {error}.", "Write http://HOST:PORT.", "", "no answer"),))
        except httpx.RequestError as error:
            return Examined((), (_silent(base, error),))
        seen = [f"{base}/health answers {health.status_code}"]
        if health.status_code in _GATEWAY_ERRORS:
            return Examined(tuple(seen), (_not_ready(base, health),))
        try:
            return _running(client, model, admin_key, seen, clock)
        except httpx.RequestError as error:
            return Examined(tuple(seen), (_silent(base, error),))


def proxied(url: str, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Report a proxy between clients of this environment and a server of this machine, if there is one."""
    with contextlib.suppress(httpx.InvalidURL):
        address = httpx.URL(url)
        if is_local(address.host) and (proxy := proxy_between(address.host, environ, scheme=address.scheme)):
            yield _finding(
                f"A client of this environment asks the proxy {proxy} for {address.host}, which is itself there.",
                f"Name {address.host} in NO_PROXY and no_proxy of the clients.",
                "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY is set; doctor itself went straight",
                "proxy between client and server",
            )


def _running(
    client: httpx.Client, model: str | None, admin_key: str | None, seen: list[str], clock: Callable[[], float]
) -> Examined:
    found = list(_at_work(client, admin_key, seen))
    listed = client.get("/v1/models")
    if listed.status_code == httpx.codes.UNAUTHORIZED:
        found.append(_finding("It wants a key.", "Give --api-key.", "GET /v1/models: 401", "no key"))
        return Examined(tuple(seen), tuple(found))
    names: list[str] = []
    with contextlib.suppress(ValueError, KeyError, TypeError):
        names = [str(entry["id"]) for entry in listed.json()["data"]]
    if not names:
        found.append(
            _finding(
                "It serves no model.",
                "Check that the URL is that of a vLLM or a kvgate.",
                f"GET /v1/models: {listed.status_code}",
                "no model served",
            )
        )
        return Examined(tuple(seen), tuple(found))
    seen.append(f"serves {', '.join(names[:8])}")
    found += _streams(client, model or names[0], seen, clock)
    return Examined(tuple(seen), tuple(found))


def _at_work(client: httpx.Client, admin_key: str | None, seen: list[str]) -> Iterator[Diagnosis]:
    keys = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
    state = client.get("/kvgate/state", headers=keys)
    if state.status_code == httpx.codes.OK:
        with contextlib.suppress(ValueError, AttributeError):
            for endpoint in state.json().get("endpoints", ()):
                seen.append(f"kvgate's endpoint {endpoint.get('id')}: {endpoint.get('state')}")
                yield from _endpoint(endpoint)
        return
    metrics = client.get("/metrics", headers=keys)
    if metrics.status_code != httpx.codes.OK:
        seen.append(f"its metrics cannot be read ({metrics.status_code})")
        return
    with contextlib.suppress(ValueError):
        observed = at_work.from_metrics(Samples(metrics.text))
        if observed.most_running is not None:
            rate = "unknown" if observed.hit_rate is None else f"{observed.hit_rate:.0%}"
            seen.append(
                f"{observed.most_running} running, {observed.most_waiting} waiting, prefix cache hit rate {rate}"
            )
        yield from at_work.judge(observed)


def _endpoint(endpoint: Mapping[str, Any]) -> Iterator[Diagnosis]:
    name = f"endpoint {endpoint.get('id')}"
    if endpoint.get("state") not in {"up", "draining"}:
        yield _finding(
            f"{name} does not serve: {endpoint.get('reason')}",
            "While it starts, wait: `kvgate serve` prints how far it is. Else read its log: "
            "`kvgate doctor --log FILE`.",
            f"{endpoint.get('state')} for {endpoint.get('since_seconds', 0):.0f} s",
            "endpoint not ready",
        )
    for one in at_work.judge(at_work.from_state(endpoint)):
        yield replace(one, cause=f"{name}: {one.cause}")


def _streams(client: httpx.Client, model: str, seen: list[str], clock: Callable[[], float]) -> Iterator[Diagnosis]:
    try:
        answer = stream(client, model, _LENGTHS[0], clock)
        if isinstance(answer, Arrivals) and streaming.flow(answer) is Flow.UNCLEAR:
            answer = stream(client, model, _LENGTHS[1], clock)
    except httpx.RequestError as error:
        yield _finding(
            "A stream broke off.",
            "Something in between gives up on long answers (its read timeout), or the engine died: read its log.",
            f"{type(error).__name__}: {error}",
            "stream broke off",
        )
        return
    if isinstance(answer, Diagnosis):
        yield answer
        return
    came = streaming.flow(answer)
    last = answer.reads[-1][0] if answer.reads else 0.0
    seen.append(f"a stream of {answer.events} events came {came.value}, in {len(answer.reads)} reads over {last:.2f} s")
    if buffered := streaming.judge(answer):
        yield buffered


def stream(client: httpx.Client, model: str, length: int, clock: Callable[[], float]) -> Arrivals | Diagnosis:
    """Stream an answer of `length` tokens and note when its bytes arrive, or say why none came."""
    body = {
        "model": model,
        "prompt": "Count: one, two, three,",
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    parts: list[tuple[float, bytes]] = []
    began = clock()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            return _refused(answer.read())
        # Nothing else is done here: parts of one read are told by how fast they follow each other.
        parts.extend((clock() - began, part) for part in answer.iter_bytes())
        headers = {name.lower(): value for name, value in answer.headers.items()}
    said = b"".join(part for _, part in parts)
    if error := _ERROR.search(said):
        return _refused(error[0])
    return Arrivals(_pieces(parts, said), _tokens(said), headers)


def _pieces(parts: Sequence[tuple[float, bytes]], said: bytes) -> list[tuple[float, int]]:
    """The time of each part and the number of events that begin in it."""
    starts = [event.start() for event in _EVENT.finditer(said)]
    pieces, end = [], 0
    for at, part in parts:
        begin, end = end, end + len(part)
        pieces.append((at, bisect_left(starts, end) - bisect_left(starts, begin)))
    return pieces


def _refused(said: bytes) -> Diagnosis:
    return _finding(
        "It refused a completion.",
        "Its message says why; name the MODEL to ask where it serves several.",
        said.decode(errors="replace")[:300],
        "completion refused",
    )


def _tokens(said: bytes) -> int | None:
    """The generated tokens by the last usage in a stream."""
    for line in reversed(said.splitlines()):
        if line.startswith((b"data: {", b"data:{")):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return int(json.loads(line.removeprefix(b"data:"))["usage"]["completion_tokens"])
    return None


def _silent(base: str, error: httpx.RequestError) -> Diagnosis:
    address = httpx.URL(base)
    loading = list(starting(address.port or _HTTP)) if is_local(address.host) else []
    if loading:
        return _finding(
            "Nothing listens there yet, and an engine of this machine is still starting: the port opens when the model "
            "is loaded.",
            "Wait, or ask kvgate: it answers while engines load, and holds requests for them. Give clients a start-up "
            "probe on /health in place of a fixed wait.",
            "; ".join(loading),
            "model still loads",
        )
    return _finding(
        f"Nothing answers at {base}: {str(error) or type(error).__name__}.",
        "Check host and port. If the server is just starting, its port opens only when the model is loaded: read its "
        "log with `kvgate doctor --log FILE`. In a container it must listen on 0.0.0.0.",
        type(error).__name__,
        "no answer",
    )


def _not_ready(base: str, health: httpx.Response) -> Diagnosis:
    server = health.headers.get("server", "?")
    return _finding(
        f"{base} is not ready: {health.status_code} from {server}.",
        "503 from kvgate: its engines still load, or are down (`/kvgate/state` says which). 502 or 504 from a proxy: "
        "the server behind it does not listen yet, or not on that address. 503 from vLLM: its engine has died.",
        health.text[:200],
        "model still loads",
    )


def _finding(cause: str, remedy: str, evidence: str, sign: str) -> Diagnosis:
    return Diagnosis(cause, remedy, evidence, kind=Kind.NETWORK, sign=sign)
