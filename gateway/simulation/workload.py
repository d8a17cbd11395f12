"""What is asked of the engine: lengths and arrival times, from a trace, rescaled."""

import csv
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from random import Random

from gateway.admission.events import Prefix

MAX_TOKENS = 2048
"""What a client asks for at most. A trace has only what was generated, and nobody who admits may read that."""
UNIT = 64
"""Tokens between two parts of a prompt that the gateway hashes, up to `STEPS` of them; twice as many in each octave."""
STEPS = 16


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it arrives (seconds), and its lengths (tokens)."""

    arrival: float
    prompt: int
    output: int
    """What it will generate."""
    max_tokens: int = MAX_TOKENS
    group: int | None = None
    """Requests of one group share the leading tokens of their prompts."""
    shared: int = 0
    """How many tokens of its prompt are of its group's; the rest is its own."""
    flow: str = ""


class WorkloadError(Exception):
    """A trace that cannot be read as one; the message says where and why."""


Workload = tuple[Request, ...]
"""Requests in the order they arrive in."""


def load(path: Path, limit: int | None = None) -> Workload:
    """Read a trace, at most `limit` requests of it, from the first on, which arrives at 0.

    It is a CSV (or .csv.gz) with the columns TIMESTAMP, ContextTokens, GeneratedTokens, as Azure's, or arrival
    (seconds), prompt, output.

    Raises:
        WorkloadError: no such file, other columns, or a value that is none.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        rows = csv.DictReader(io.StringIO(raw.decode()))
        columns = set(rows.fieldnames or ())
        if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
            arrival, prompt, output = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
        elif {"arrival", "prompt", "output"} <= columns:
            arrival, prompt, output = "arrival", "prompt", "output"
        else:
            raise WorkloadError(
                f"{path}: columns are {', '.join(sorted(columns)) or 'none'}; expected TIMESTAMP, ContextTokens, "
                "GeneratedTokens, or arrival, prompt, output"
            )
        requests = [
            Request(_seconds(row[arrival]), max(1, int(row[prompt])), max(1, int(row[output])))
            for row in islice(rows, limit)
        ]
    except (OSError, ValueError, TypeError) as error:
        raise WorkloadError(f"{path}: {error}") from error
    if not requests:
        raise WorkloadError(f"{path}: no requests in it")
    requests.sort(key=lambda request: request.arrival)
    start = requests[0].arrival
    return tuple(replace(request, arrival=request.arrival - start) for request in requests)


def rate(workload: Workload) -> float:
    """Requests per second, over the time in which they arrive."""
    span = workload[-1].arrival - workload[0].arrival
    return len(workload) / span if span else float(len(workload))


def at_rate(workload: Workload, requests_per_second: float) -> Workload:
    """The same requests with the clock rescaled, so that bursts stay bursts; the first arrives at 0."""
    factor, start = rate(workload) / requests_per_second, workload[0].arrival
    return tuple(replace(request, arrival=(request.arrival - start) * factor) for request in workload)


def in_phases(workload: Workload, rates: Sequence[float]) -> Workload:
    """The same requests in as many equal parts as there are rates (requests per second), one after the other."""
    size = -(-len(workload) // len(rates))
    phased: list[Request] = []
    start = 0.0
    for number, requests_per_second in enumerate(rates):
        part = workload[number * size : (number + 1) * size]
        paced = at_rate(part, requests_per_second) if part else ()
        phased += [replace(request, arrival=start + request.arrival) for request in paced]
        start = phased[-1].arrival + 1 / requests_per_second
    return tuple(phased)


def scaled(workload: Workload, prompts: float = 1.0, outputs: float = 1.0) -> Workload:
    """The same requests with longer or shorter prompts and outputs, and what clients ask for at most likewise."""
    return tuple(
        replace(
            request,
            prompt=max(1, round(request.prompt * prompts)),
            output=max(1, round(request.output * outputs)),
            max_tokens=max(1, round(request.max_tokens * outputs)),
        )
        for request in workload
    )


def sharing(workload: Workload, share: float, groups: int, seed: int = 0) -> Workload:
    """The same requests, with a share (0 to 1) of each prompt as in others of its group, which is drawn at random."""
    random = Random(seed)  # noqa: S311 - a model, not a secret
    return tuple(
        replace(request, group=random.randrange(groups), shared=int(request.prompt * share)) for request in workload
    )


def capped(workload: Workload, max_tokens: int) -> Workload:
    """The same requests from clients that ask for so many tokens at most."""
    return tuple(
        replace(request, max_tokens=max_tokens, output=min(request.output, max_tokens)) for request in workload
    )


def fitted(workload: Workload, max_model_len: int, kv_tokens: int) -> Workload:
    """The same requests, each cut to what such an engine can serve: `max_tokens` stays, and the prompt gives way."""
    length = min(max_model_len, kv_tokens)
    fit = []
    for request in workload:
        max_tokens = min(request.max_tokens, length // 2)
        prompt = min(request.prompt, length - max_tokens)
        output = min(request.output, max_tokens)
        fit.append(
            replace(request, prompt=prompt, output=output, max_tokens=max_tokens, shared=min(request.shared, prompt))
        )
    return tuple(fit)


def prefix(request: Request, number: int) -> Prefix:
    """The hashed leading parts of the prompt of the request with this number in its workload, as a gateway has them."""
    parts = []
    end, stride = UNIT, UNIT
    while end < request.prompt:
        common = request.group is not None and end <= request.shared
        parts.append((end, hash((common, request.group if common else number, end))))
        if end == 2 * STEPS * stride:
            stride *= 2
        end += stride
    return tuple(parts)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Seven digits of a second are one more than datetime reads.
        return datetime.fromisoformat(text[:26]).timestamp()
