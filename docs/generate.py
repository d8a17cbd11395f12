"""Writes the documentation that the code already knows. `--check` only says whether it is up to date."""

import io
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.console import Console

from docs.dashboards import dashboards
from engine.diagnosis import table
from engine.plan import report
from engine.plan.ladder import STEPS
from engine.plan.llama.planner import WAYS
from engine.plan.remedies import REMEDIES
from gateway.admission.decide import REASONS
from gateway.admission.outcomes import BEYOND_ITS_MODEL, Outcome
from gateway.admission.placing.rules import RULES, Rule
from gateway.config.reloadable import NEEDS, every, inner_section
from gateway.config.settings import Settings
from gateway.ops.pictures.broadcast import KEPT, MOST
from gateway.ops.pictures.picture import (
    Changes,
    Endpoint,
    Flow,
    Gauge,
    Model,
    Picture,
    Point,
    Quantiles,
    Request,
    Sign,
    Split,
)
from gateway.relay.routes import NOT_SERVED, ROUTES, Action
from gateway.wire.errors import REFUSALS
from gateway.wire.fields import FIELDS, Api, Use

_HERE = Path(__file__).parent
_CONFIGURATION = _HERE / "configuration.md"
_INTERFACE = _HERE / "interface.md"
_DIAGNOSIS = _HERE / "diagnosis.md"
_PLANNING = _HERE / "planning.md"
_ARCHITECTURE = _HERE / "architecture.md"
_OPERATIONS = _HERE / "operations.md"
_RULE_MARKS = ("<!-- rules: begin -->\n", "<!-- rules: end -->\n")
_TABLE_MARKS = ("<!-- kvgate doctor --table: begin -->\n", "<!-- kvgate doctor --table: end -->")

_HEADERS = (
    (
        "x-kvgate-ttft-ms",
        "the request",
        "Milliseconds it can wait for a first token, in place of `admission.ttft_target`. Also `x-llm-d-slo-ttft-ms`.",
    ),
    (
        "x-kvgate-fallback",
        "the request",
        "`allow`: another model may answer where this one cannot in time or in length (`models[].fallbacks`).",
    ),
    (
        "x-kvgate-fallback",
        "the answer",
        "What answers instead: a model's name, or the host of a server elsewhere.",
    ),
    ("x-kvgate-prompt-tokens", "the answer", "Tokens of the prompt, as counted before it was admitted."),
    (
        "x-kvgate-counted",
        "the answer",
        "Who counted them: `local` (kvgate, as the engine does), `engine`, `estimate`, or `bound` (at most so many).",
    ),
    ("x-kvgate-max-tokens", "the answer", "The output limit that kvgate set ([when](engines.md))."),
    ("x-kvgate-queue-ms", "the answer", "Milliseconds it waited. Not behind a heartbeat: it is not known by then."),
    ("x-kvgate-endpoint", "the answer", "The endpoint that answers. Not behind a heartbeat either."),
    ("x-kvgate-reason", "a refusal", "The outcome: one of the table below."),
    (
        "x-llm-d-request-dropped-reason",
        "a refusal",
        "llm-d's word, if it has one: `rejected-saturated`, `rejected-ttl-expired` or `rejected-shutting-down`.",
    ),
)
_EDITS = (
    (
        "`stream_options.include_usage`",
        "A stream of chat or completions whose client does not ask for usage. The event with it is taken out again.",
    ),
    ("`priority`", "The client's value is not a band that its key allows; or there is none, and the band is not 0."),
    ("`priority`, taken out", "SGLang takes the highest first, and TensorRT-LLM refuses it."),
    (
        "`max_tokens` (`max_completion_tokens`, `max_output_tokens`)",
        "The request has no limit, and its key has one; or its engine fails all that runs once the cache is full.",
    ),
    (
        "`kv_transfer_params.prompt_token_ids`, `prompt_token_ids`",
        "The engine takes ids, and gets those counted (`counting.hand_over_from`). Not with `return_prompt_text`.",
    ),
    (
        "`model`",
        "Another model answers (`models[].fallbacks`). A server elsewhere gets no `priority` and no token ids.",
    ),
)
_ACTIONS = {
    Action.ADMIT: "counted, admitted, streamed",
    Action.RELAY: "passed to a healthy endpoint, under a concurrency cap",
    Action.LOOK_UP: "passed to a healthy endpoint, under a concurrency cap",
    Action.FOLLOW: "passed to the endpoint that made the response",
    Action.ANSWER: "answered by kvgate",
}


def configuration() -> str:
    """The reference of every setting."""
    lines = [
        "# Configuration",
        "",
        "Generated from `gateway/config/settings.py` by `make docs`.",
        "",
        "A setting is taken from the command line, else from the environment, else from the file, else its default is",
        "used. In the environment a setting is `KVGATE_` and its name in capitals, `__` between the levels:",
        "`admission.kv_high` is `KVGATE_ADMISSION__KV_HIGH`. Lists are given there as JSON. `KVGATE_CONFIG` names the",
        "file where `--config` does not. Unknown keys and bad values stop kvgate at start, in one message that names",
        "them. `kvgate check-config FILE` prints those that differ from the defaults, with `--all` all of them, and no",
        "secrets.",
        "",
        "Three variables are read outside the settings: `KVGATE_CONFIG`; `KVGATE_CACHE`, the folder of what kvgate",
        "sets up once (`~/.cache/kvgate` by default); `KVGATE_ENGINE_PYTHON`, an interpreter that has vllm.",
        "",
        "`changes` says what a changed setting needs while kvgate serves (`kvgate reload`, SIGHUP): nothing (live); a",
        "new process of the gateway, which a kvgate that launches engines starts by itself, and any other is restarted",
        "for; a restart; new engines in the place of the old ones; or it is for the engine that comes next.",
    ]
    for name, field in Settings.model_fields.items():
        lines += ["", f"## `{name}`", ""]
        section = _section(field.annotation)
        lines += [(section.__doc__ or "").split("\n\n")[0].replace("\n", " "), ""]
        lines += ["| setting | type | default | changes | meaning |", "|---|---|---|---|---|"]
        lines += list(_rows(section, f"{name}[]." if get_origin(field.annotation) is tuple else f"{name}."))
    return "\n".join(lines) + "\n"


def _events() -> list[str]:
    """What `/kvgate/events` sends."""
    lines = [
        "## Events",
        "",
        "`GET /kvgate/events` sends server-sent events, at most two a second. Any worker, any gateway of a tier",
        "sends what the process that decides sees. Nothing is computed while nobody reads. A reader that is behind by",
        f"more than {KEPT} events gets a new `snapshot`; {MOST} may read from one process at once, and one address",
        "leaves room for others.",
        "",
        "| event | data |",
        "|---|---|",
        "| `snapshot` | The first event: a whole picture, with its history of 15 minutes. Replace what you have. |",
        "| `changes` | What differs: `requests` that do, by `key`; `order`, the keys of all; `points` to be added. |",
        "| `silence` | The process that decides does not answer now. A `snapshot` follows when one does. |",
        "",
        "Times are seconds since 1970 on the clock of the process that decides, as is `at`: show `at - since`, and",
        "your clock does not matter. Shares are of 1. A field that has its default is left out. `points` and the",
        "gauges in them are arrays, in the order of their fields. Nothing has text of a prompt or an answer. The",
        "meaning and the default of each field: [`picture.py`](../gateway/ops/pictures/picture.py), whose `changed`",
        "makes the next picture from the one before.",
        "",
        "| part | fields |",
        "|---|---|",
    ]
    parts = (Picture, Changes, Sign, Endpoint, Split, Model, Flow, Quantiles, Request, Point, Gauge)
    lines += [f"| `{part.__name__}` | {', '.join(f'`{name}`' for name in part.__struct_fields__)} |" for part in parts]
    return [*lines, ""]


def interface() -> str:
    """The routes, and how every request can end."""
    lines = ["# Routes and outcomes", "", "Generated from the code's own tables by `make docs`.", "", "## Routes", ""]
    lines += ["| method | path | what kvgate does |", "|---|---|---|"]
    lines += [f"| {route.method} | `{route.path}` | {_ACTIONS[route.action]} |" for route in ROUTES]
    lines += [
        "",
        "Health, metrics and administration (`/livez`, `/readyz`, `/health`, `/version`, `/metrics`, `/kvgate/state`,",
        "`/kvgate/events`, `/kvgate/endpoints/{id}/drain` and `/undrain`, `/kvgate/adapters/load` and `/unload`,",
        "`/kvgate/explain`) are described by kvgate's own `/docs`. Any other path is answered with 404, another method",
        "with 405 and `Allow`.",
        "HEAD is answered as GET, without the body. The routes that change something (`drain`, `undrain`, `load`,",
        "`unload`) need the admin key. If none is configured, they are open to this machine only: to a loopback",
        "address that asks for a loopback host, neither through a proxy nor from another site's web page.",
        "",
        "| routes of vLLM 0.32 that are not served | why |",
        "|---|---|",
        *(f"| {', '.join(f'`{path}`' for path in paths)} | {reason} |" for paths, reason in NOT_SERVED),
        "",
        *_events(),
        "## Fields that bring a prompt",
        "",
        "Every field of each kind's requests that brings a prompt, or changes what becomes of it. What a kind does not",
        "read does not count there, and what kinds of one model treat in different ways is estimated. A field that is",
        "refused is so whichever kind answers. ([Where this comes from](engines.md#fields-of-a-request).)",
        "",
        "| engine | API | counted as the engine counts | counted by the engine | estimated | refused |",
        "|---|---|---|---|---|---|",
        *(_uses(kind, api) for kind, fields in FIELDS.items() for api in fields.prompt),
        "",
        "## Fields that decide what else is accounted for",
        "",
        "A limit that an engine reads before the others is refused where it answers, and for a server elsewhere; but",
        "not `max_completion_tokens` in an API that has it. An adapter is refused to a key that may use only some",
        "models. Prompts that differ in a field that keeps them apart share no prefix.",
        "",
        "| engine | limits | limits that are refused | adapters | `priority` | keeps prompts apart |",
        "|---|---|---|---|---|---|",
        *(_others(kind) for kind in FIELDS),
        "",
        "## Edits of the body",
        "",
        "An endpoint gets the client's own bytes, except for these fields. A byte order mark before it is dropped.",
        "",
        "| field | when it is set |",
        "|---|---|",
        *(f"| {field} | {when} |" for field, when in _EDITS),
        "",
        "## Headers",
        "",
        "For the APIs whose requests are counted. An endpoint gets none of them, and clients get none that an",
        "endpoint sends under `x-kvgate-`. `x-request-id` is the client's own, or a new one.",
        "",
        "| header | of | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {where} | {meaning} |" for name, where, meaning in _HEADERS),
        "",
        "## Outcomes",
        "",
        "Every request ends in exactly one outcome: the label of `kvgate_requests_total`, `outcome` in the access log.",
        "Before one with `yes` under `fallback`, the model's fallbacks are asked, if client and operator allow it.",
        "",
        "| outcome | status | error code | retry | fallback |",
        "|---|---|---|---|---|",
    ]
    for outcome in Outcome:
        refusal = REFUSALS.get(outcome)
        if refusal is None:
            lines.append(f"| `{outcome}` | the endpoint's | - | - | - |")
        else:
            retry = "`Retry-After` where it is known" if refusal.retry else "`x-should-retry: false`"
            fallback = "yes" if outcome in BEYOND_ITS_MODEL else "-"
            lines.append(f"| `{outcome}` | {refusal.status} | `{refusal.code}` | {retry} | {fallback} |")
    return "\n".join(lines) + "\n"


def _uses(kind: str, api: Api) -> str:
    uses = (Use.COUNTED, Use.ENGINE, Use.ESTIMATED, Use.REFUSED)
    return f"| {kind} | {api} | {' | '.join(_named(FIELDS[kind].prompt[api], use) for use in uses)} |"


def _others(kind: str) -> str:
    fields = FIELDS[kind].others
    columns = [_named(fields, use) for use in (Use.LIMIT, Use.OVERRIDING, Use.ADAPTER)]
    columns += [fields.get("priority", "-"), _named(fields, Use.APART)]
    return f"| {kind} | {' | '.join(columns)} |"


def _named(fields: Mapping[str, Use], use: Use) -> str:
    return ", ".join(f"`{name}`" for name, its in fields.items() if its is use) or "-"


def diagnosis() -> str:
    """The page about `kvgate doctor`, with the table of what it knows between its marks."""
    begin, end = _TABLE_MARKS
    before, _, rest = _DIAGNOSIS.read_text().partition(begin)
    return f"{before}{begin}\n{table.markdown()}\n{end}{rest.partition(end)[2]}"


def _rows(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for key, field in every(section, prefix):
        meaning = (field.description or "").replace("|", "\\|")
        yield f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {NEEDS[key]} | {meaning} |"


def _section(annotation: Any) -> type[BaseModel]:
    section = inner_section(annotation)
    assert section is not None  # noqa: S101  # the top level has only sections
    return section


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in {types.UnionType, typing.Union}:
        return " or ".join(_type(part) for part in arguments if part is not types.NoneType)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "keys and values"
    names = {float: "number", int: "integer", str: "text", bool: "true or false", SecretStr: "secret", Path: "path"}
    return names.get(annotation, "URL")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or default is PydanticUndefined or default in ((), {}):
        return "-"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def planning() -> str:
    """The page on planning, with the table of remedies and the published starts as the command prints them."""
    out = io.StringIO()
    report.show_published(Console(file=out, width=report.WIDTH, highlight=False, markup=False))
    starts = ["```", *(line.rstrip() for line in out.getvalue().splitlines()), "```"]
    rows = ["| remedy | flags | when |", "|---|---|---|"]
    for remedy in REMEDIES:
        flags = ", ".join(f"`{flag}`" for flag in remedy.flags)
        rows += [f"| {remedy.name} | {flags} | {remedy.condition} |"]
    rungs = [(step.name, step.of, step.needs, step.flags, step.changes) for step in STEPS]
    rungs += [(f"llama-server, {way.name}", "each GGUF file", way.when, way.flags, way.changes) for way in WAYS]
    ladder = ["| rung | of | needs | flags | quality |", "|---|---|---|---|---|"]
    for name, of, needs, words, changes in rungs:
        flags = f"`{words}`" if words else "-"
        ladder += [f"| {name} | {of} | {needs or '-'} | {flags} | {', '.join(sorted(changes)) or '-'} |"]
    page = _PLANNING.read_text()
    for name, lines in (("remedies", rows), ("ladder", ladder), ("published", starts)):
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, rest = page.split(begin, 1)
        page = before + begin + "\n".join(lines) + end + rest.split(end.strip(), 1)[1]
    return page


def with_rules(page: Path, *, all_of_them: bool) -> str:
    """A page with the table of the admission rules: of the endpoints, and of the pool where it has `all_of_them`."""
    rows = [(rule.name, rule.says_no, _on_idle(rule)) for rule in RULES]
    if all_of_them:
        rows = [*((name, meaning, "") for name, meaning in REASONS.items()), *rows]
    head = ["", "| rule | meaning | on an idle endpoint |", "|---|---|---|"]
    lines = [*head, *(f"| `{name}` | {meaning} | {idle} |" for name, meaning, idle in rows), "", ""]
    begin, end = _RULE_MARKS
    before, _, rest = page.read_text().partition(begin)
    return before + begin + "\n".join(lines) + end + rest.partition(end)[2]


def _on_idle(rule: Rule) -> str:
    if not rule.idle:
        return ""
    return "yes, if requests hold their limit there" if rule.measures else "yes"


def main() -> None:
    """Write the files, or compare them."""
    stale = []
    for file, text in (
        (_CONFIGURATION, configuration()),
        (_INTERFACE, interface()),
        (_DIAGNOSIS, diagnosis()),
        (_PLANNING, planning()),
        (_ARCHITECTURE, with_rules(_ARCHITECTURE, all_of_them=False)),
        (_OPERATIONS, with_rules(_OPERATIONS, all_of_them=True)),
        *dashboards(),
    ):
        if not file.exists() or file.read_text() != text:
            stale.append(file)
            if "--check" not in sys.argv:
                file.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(str(file.relative_to(_HERE.parent)) for file in stale)}; run `make docs`")


if __name__ == "__main__":
    main()
