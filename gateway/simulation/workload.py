"""The workload of a simulation: lengths and arrival times from a trace, rescaled."""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from random import Random

from gateway.admission.events import Prefix

MAX_TOKENS = 2048
"""The client's `max_tokens`. A trace has only the generated length, which admission must not see."""
UNIT = 64
"""Tokens between two hashed parts of a prompt, for up to `STEPS` parts. It doubles with each octave."""
STEPS = 16
MOONCAKE_BLOCK = 512
"""Tokens per hash in Mooncake's traces."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its arrival (seconds) and its lengths (tokens)."""

    arrival: float
    prompt: int
    output: int
    """Tokens it will generate."""
    max_tokens: int = MAX_TOKENS
    shared: tuple[tuple[int, int], ...] = ()
    """Shared parts at the start of its prompt, as `(group, end)`: up to token `end` it has the group's tokens. Each
    part begins where the one before ends, the same for its whole group, so the parts of all prompts form a tree."""
    flow: str = ""


class WorkloadError(Exception):
    """A trace cannot be read. The message says where and why."""


Workload = tuple[Request, ...]
"""Requests in the order of arrival."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """One publisher's column names."""

    arrival: str
    prompt: str
    output: str

    @property
    def names(self) -> set[str]:
        return {self.arrival, self.prompt, self.output}


COLUMNS = (
    # https://github.com/Azure/AzurePublicDataset
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    # https://github.com/HPMLL/BurstGPT
    _Columns("Timestamp", "Request tokens", "Response tokens"),
    # our own
    _Columns("arrival", "prompt", "output"),
)
"""Formats of CSV traces, told apart by their header."""


def load(path: Path, limit: int | None = None) -> Workload:
    """Read the first `limit` requests of a trace. The first arrives at 0.

    The trace is a CSV (or .csv.gz) with Azure's columns, BurstGPT's, or arrival (seconds), prompt, output. Or it is
    JSON lines (or .jsonl.gz) as Mooncake's, whose hashes tell which prompts share their beginnings. Failed requests of
    BurstGPT, which have no response, are left out.

    Raises:
        WorkloadError: the file is missing, has other columns, or has an invalid value.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = raw.decode("utf-8-sig")
        requests = list(islice(_mooncake(text) if text.startswith("{") else _rows(path, text), limit))
    except KeyError as error:
        raise WorkloadError(f"{path}: a line without {error}") from error
    except (OSError, ValueError, TypeError) as error:
        raise WorkloadError(f"{path}: {error}") from error
    if not requests:
        raise WorkloadError(f"{path}: no requests in it")
    requests.sort(key=lambda request: request.arrival)
    start = requests[0].arrival
    return tuple(replace(request, arrival=request.arrival - start) for request in _in_tree(requests))


def _rows(path: Path, text: str) -> Iterator[Request]:
    rows = csv.DictReader(io.StringIO(text))
    header = [name.strip() for name in rows.fieldnames or ()]
    columns = next((known for known in COLUMNS if known.names <= {*header}), None)
    if columns is None:
        known = "; or ".join(f"{each.arrival}, {each.prompt}, {each.output}" for each in COLUMNS)
        raise WorkloadError(
            f"{path}: columns are {', '.join(header) or 'none'}; expected {known}; or JSON lines as Mooncake's"
        )
    rows.fieldnames = header
    for row in rows:
        output = int(row[columns.output])
        if output > 0:
            yield Request(_seconds(row[columns.arrival]), max(1, int(row[columns.prompt])), output)


def _mooncake(text: str) -> Iterator[Request]:
    """Read https://github.com/kvcache-ai/Mooncake: milliseconds, lengths, and a hash for each block of a prompt."""
    for line in text.splitlines():
        if line.strip():
            row = json.loads(line)
            prompt = max(1, int(row["input_length"]))
            ends = [min(MOONCAKE_BLOCK * number, prompt) for number in range(1, len(row["hash_ids"]) + 1)]
            parts = tuple(zip(map(int, row["hash_ids"]), ends, strict=True))
            yield Request(float(row["timestamp"]) / 1000, prompt, max(1, int(row["output_length"])), shared=parts)


def _in_tree(requests: Sequence[Request]) -> Iterator[Request]:
    """The same with blocks joined into parts that the same requests share. Blocks of only one request are dropped."""
    numbers: dict[tuple[int, tuple[int, int]], int] = {}
    holders: list[int] = [0]
    paths = []
    for request in requests:
        node, path = 0, []
        for block in request.shared:
            node = numbers.setdefault((node, block), len(holders))
            if node == len(holders):
                holders.append(0)
            holders[node] += 1
            path.append(node)
        paths.append(path)
    for request, path in zip(requests, paths, strict=True):
        parts: list[tuple[int, int]] = []
        before = 0
        for node, (_, end) in zip(path, request.shared, strict=True):
            if holders[node] == 1:
                break
            if holders[node] == before:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((node, end))
            before = holders[node]
        yield replace(request, shared=tuple(parts))


def rate(workload: Workload) -> float:
    """Requests per second over the time of arrivals."""
    span = workload[-1].arrival - workload[0].arrival
    return len(workload) / span if span else float(len(workload))


def at_rate(workload: Workload, requests_per_second: float) -> Workload:
    """The same requests with the clock rescaled, so that bursts stay bursts. The first arrives at 0."""
    factor, start = rate(workload) / requests_per_second, workload[0].arrival
    return tuple(replace(request, arrival=(request.arrival - start) * factor) for request in workload)


def scaled(workload: Workload, prompts: float = 1.0, outputs: float = 1.0) -> Workload:
    """The same requests with prompts, outputs and `max_tokens` scaled."""
    return tuple(
        replace(
            request,
            prompt=max(1, round(request.prompt * prompts)),
            shared=tuple((group, round(end * prompts)) for group, end in request.shared),
            output=max(1, round(request.output * outputs)),
            max_tokens=max(1, round(request.max_tokens * outputs)),
        )
        for request in workload
    )


def sharing(workload: Workload, share: float, groups: int, seed: int = 0) -> Workload:
    """The same requests, each sharing this part (0 to 1) of its prompt with a group drawn at random."""
    random = Random(seed)  # noqa: S311 - a model, not a secret
    return tuple(
        replace(request, shared=((random.randrange(groups), int(request.prompt * share)),)) for request in workload
    )


def in_flows(workload: Workload, flows: int, seed: int = 0) -> Workload:
    """The same requests, drawn at random for so many flows: the second sends twice as many as the first, and so on."""
    random = Random(seed)  # noqa: S311 - a model, not a secret
    numbers = range(1, flows + 1)
    drawn = random.choices(numbers, numbers, k=len(workload))
    return tuple(replace(request, flow=str(flow)) for request, flow in zip(workload, drawn, strict=True))


def capped(workload: Workload, max_tokens: int) -> Workload:
    """The same requests from clients that ask for at most this many tokens."""
    return tuple(
        replace(request, max_tokens=max_tokens, output=min(request.output, max_tokens)) for request in workload
    )


def fitted(workload: Workload, max_model_len: int, kv_tokens: int) -> Workload:
    """The same requests, each cut to what such an engine can serve. `max_tokens` stays and the prompt is cut."""
    length = min(max_model_len, kv_tokens)
    fit = []
    for request in workload:
        max_tokens = min(request.max_tokens, length // 2)
        prompt = min(request.prompt, length - max_tokens)
        output = min(request.output, max_tokens)
        fit.append(replace(request, prompt=prompt, output=output, max_tokens=max_tokens))
    return tuple(fit)


def in_blocks(request: Request, block_size: int) -> Iterator[tuple[int, int, int]]:
    """Its shared parts as the engine holds them: the group, its first block, and the block after its last.

    A prompt's last token is computed anew for each request.
    """
    low = 0
    for group, end in request.shared:
        high = min(end, request.prompt - 1) // block_size
        if high > low:
            yield group, low, high
        low = high


def prefix(request: Request, number: int) -> Prefix:
    """The hashed leading parts of a prompt, as a gateway has them. `number` is the request's in its workload."""
    parts = []
    end, stride = UNIT, UNIT
    shared = iter((*request.shared, (-1, request.prompt)))
    group, last = next(shared)
    while end < request.prompt:
        while end > last:
            group, last = next(shared)
        parts.append((end, hash((group, number if group < 0 else 0, end))))
        if end == 2 * STEPS * stride:
            stride *= 2
        end += stride
    return tuple(parts)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # Datetime reads six digits of a second; these have seven.
        return datetime.fromisoformat(text[:26]).timestamp()
