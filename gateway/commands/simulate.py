"""`kvgate simulate`: admission's effect on a trace, without an engine."""

from math import inf
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.runtime.failure import fail


def simulate(
    trace: Annotated[
        Path,
        typer.Option(
            help="A trace: CSV as Azure's or BurstGPT's, or with arrival,prompt,output; JSON lines as Mooncake's. Or "
            "one of these as .gz."
        ),
    ],
    kv_tokens: Annotated[int, typer.Option(help="KV cache of the engine, tokens.")] = 43_000,
    rate: Annotated[float | None, typer.Option(help="Requests per second; the trace's clock is rescaled.")] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(
            help="Instead of a rate: offered load, 1 is the capacity of an oracle; several times for several."
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many of the trace, from its start.")] = 4000,
    scale_prompts: Annotated[float, typer.Option(min=0, help="Prompts so many times as long.")] = 1.0,
    scale_outputs: Annotated[float, typer.Option(min=0, help="Outputs so many times as long.")] = 1.0,
    shared_prefix: Annotated[float, typer.Option(min=0, max=1, help="Share of each prompt common to its group.")] = 0.0,
    prefix_groups: Annotated[int, typer.Option(min=1, help="Groups that share a prefix.")] = 8,
    flows: Annotated[
        int, typer.Option(min=1, help="Clients: the second sends twice as many requests as the first, and so on.")
    ] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="What clients ask for at most (scaled with outputs).")] = 2048,
    max_model_len: Annotated[int, typer.Option(min=2, help="Longer prompts are cut.")] = 32_768,
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    max_num_seqs: Annotated[int, typer.Option(help="As vLLM's flag.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="As vLLM's flag.")] = 2048,
    step: Annotated[
        str, typer.Option(help="Seconds of a step: base,per sequence,per prefilled token,per token of context.")
    ] = "0.016,0.0001,0.00012,0.00000013",
    ttft: Annotated[float, typer.Option(help="SLO and target: seconds to the first token.")] = 5.0,
    gap: Annotated[float, typer.Option(help="SLO: most seconds between two tokens.")] = 0.5,
    gateways: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            help="Compare, instead, one core for all gateways with so many gateways that have one and an equal share "
            "of the engine each; several times for several.",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw goodput over load, and KV usage, to this .png or .svg.")
    ] = None,
) -> None:
    """Compare vLLM alone, its watermark, a gate on scraped metrics, kvgate and an oracle on a trace."""
    from gateway.admission.policy import Policy  # noqa: PLC0415 - other commands start without all this
    from gateway.simulation import report, workload  # noqa: PLC0415
    from gateway.simulation.compare import Row, capacity, compare, contenders, together_and_apart  # noqa: PLC0415
    from gateway.simulation.machine import Machine, StepTime  # noqa: PLC0415
    from gateway.simulation.result import Slo  # noqa: PLC0415

    console = Console(highlight=False)
    console.width = max(console.width, report.WIDTH)
    if rate is not None and load:
        fail("--rate and --load say the same thing: give one")
    for name, value in [("--rate", rate), *(("--load", each) for each in load or [])]:
        if value is not None and value <= 0:
            fail(f"{name} is {value:g}: it must be more than 0")
    slo = Slo(ttft, gap)
    seconds = _four(step)
    try:
        machine = Machine(
            kv_tokens, block_size, max_model_len, max_num_seqs, max_num_batched_tokens, step=StepTime(*seconds)
        )
        offered = workload.capped(workload.load(trace, requests), max_tokens)
        offered = workload.scaled(offered, scale_prompts, scale_outputs)
        if shared_prefix:
            offered = workload.sharing(offered, shared_prefix, prefix_groups)
        if flows > 1:
            offered = workload.in_flows(offered, flows)
        known = capacity(offered, machine)
        rows: list[Row] = []
        for rate_ in [rate] if rate is not None else [known.requests_per_second * each for each in load or [1.0]]:
            relative = rate_ / known.requests_per_second
            policy = Policy(ttft_target=ttft)
            compared = together_and_apart(policy, gateways) if gateways else contenders(policy, slo, known)
            found = compare(workload.at_rate(offered, rate_), machine, compared, slo, relative)
            title = f"{len(offered):,} requests at {rate_:.2f}/s, load {relative:.2f}"
            console.print(report.table(found, title))
            rows += found
        if json is not None:
            report.write_json(rows, {"trace": trace.name, "capacity": known.requests_per_second}, json)
        if plot is not None:
            report.plot(rows, plot)
    except (workload.WorkloadError, report.PlotError, ValueError, OSError) as error:
        fail(str(error))


def _four(step: str) -> list[float]:
    try:
        seconds = [float(part) for part in step.split(",")]
    except ValueError:
        seconds = []
    if len(seconds) != 4 or not all(0 <= value < inf for value in seconds) or not seconds[0]:  # noqa: PLR2004
        fail(f"--step is {step!r}: expected four numbers of seconds as in 0.016,0.0001,0.00012,0.00000013")
    return seconds
