"""`kvgate plan`: whether a model fits, before any download or launch."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from engine.plan.cards import Hardware, SizeError, UnknownCardError, find, of_driver, parse_bytes
from engine.plan.quality import Quality
from engine.plan.traffic import Traffic
from gateway.runtime.failure import fail
from gateway.serve.hardware import cards_here, hardware_here

if TYPE_CHECKING:
    from engine.plan.llama.model import LlamaModel
    from engine.plan.llama.planner import Machine

DOES_NOT_FIT = 1


def plan_command(
    model: Annotated[
        str | None, typer.Argument(help="Model folder or hub id, for vLLM; a GGUF file, for llama-server.")
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Argument(help="After `--`: what is given for the engine, which the plan leaves as it is."),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="A card that need not be here, as h100 or rtx-4090.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many cards shall serve the model.")] = None,
    vram: Annotated[str | None, typer.Option(help="A card by its memory, as 24GiB.")] = None,
    traffic: Annotated[
        str | None, typer.Option(help="What requests are: an event log, a trace (CSV), or a URL of a kvgate or a vLLM.")
    ] = None,
    admin_key: Annotated[
        str | None, typer.Option(envvar="KVGATE_AUTH__ADMIN_KEY", help="Admin key for a --traffic URL.")
    ] = None,
    ladder: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--ladder", help="Print every way to serve it, of vLLM and llama-server, and the first that fits."
        ),
    ] = False,
    alternative: Annotated[
        list[str] | None,
        typer.Option(help="With --ladder: another checkpoint of the same model, as a quantized one or a GGUF file."),
    ] = None,
    allow: Annotated[
        list[Quality] | None, typer.Option(help="With --ladder: what may be of 8 bits or less, and change answers.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,  # noqa: FBT002
    published: Annotated[  # noqa: FBT002
        bool, typer.Option("--published", help="Print published starts on real GPUs beside what the plan says of them.")
    ] = False,
) -> None:
    """Say whether MODEL fits, what to change where it does not, and the command that follows."""
    from engine.arguments import ArgumentError, Arguments  # noqa: PLC0415 - other commands start without all this
    from engine.host_memory import free_bytes  # noqa: PLC0415
    from engine.plan import report  # noqa: PLC0415
    from engine.plan.budget import RefusedError, Request  # noqa: PLC0415
    from engine.plan.checkpoint import read_checkpoint  # noqa: PLC0415
    from engine.plan.gguf import is_gguf  # noqa: PLC0415
    from engine.plan.hub import CheckpointError  # noqa: PLC0415
    from engine.plan.kv import UnpackableError  # noqa: PLC0415
    from engine.plan.planner import Verdict, plan  # noqa: PLC0415
    from engine.plan.shape import ModelShape, UnknownShapeError  # noqa: PLC0415
    from engine.plan.traffic import TrafficError  # noqa: PLC0415
    from gateway.advice.traffic import read_traffic  # noqa: PLC0415

    out = Console(highlight=False, markup=False)
    out.width = max(out.width, report.WIDTH)
    if published:
        report.show_published(out)
        return
    if model is None:
        fail("nothing to plan: name a MODEL, a folder or a name on the hub")
    try:
        hardware = _hardware(gpu, gpus, vram, os.environ)
        seen = read_traffic(traffic, key=admin_key) if traffic is not None else None
        if ladder:
            _climb((model, *(alternative or ())), args or (), hardware, seen, allow or (), out, json=json)
        if is_gguf(model):
            _plan_gguf(model, tuple(args or ()), hardware, seen, out, json=json)
        arguments = Arguments.parse(args or ())
        checkpoint = read_checkpoint(model, revision=arguments.text("--revision"))
        shape = ModelShape.from_config(checkpoint.config)
        request = Request(
            model,
            shape,
            checkpoint.weights(shape),
            hardware,
            arguments,
            traffic=seen,
            all_cards=gpus is not None,
            host_bytes=free_bytes() if hardware.measured else None,
            environ=os.environ,
        )
        made = plan(request)
    except CheckpointError as error:
        fail(f"{error.cause}\n{error.remedy}")
    except UnknownShapeError as error:
        fail(f"{model} cannot be planned: {error}")
    except (ArgumentError, RefusedError, SizeError, UnknownCardError, UnpackableError, TrafficError) as error:
        fail(str(error))
    if json:
        sys.stdout.write(report.as_json(made, request).decode() + "\n")
    else:
        report.show(made, request, out)
    sys.exit(DOES_NOT_FIT if made.verdict is Verdict.NOT else 0)


def _plan_gguf(
    model: str, given: tuple[str, ...], hardware: Hardware, traffic: Traffic | None, out: Console, *, json: bool
) -> NoReturn:
    """Plan a llama-server, and end with what came of it."""
    from engine.plan.llama import report  # noqa: PLC0415
    from engine.plan.llama.planner import LlamaVerdict, Wishes, plan  # noqa: PLC0415
    from engine.plan.llama.settings import GivenError  # noqa: PLC0415

    machine = _machine(hardware)
    lengths = traffic.total_tokens if traffic else None
    running = traffic.concurrency if traffic else None
    wishes = Wishes(lengths.most.high if lengths else None, running.p99.high if running else None, given=given)
    described = _described(model)
    try:
        made = plan(described, machine, wishes)
    except GivenError as error:
        fail(str(error))
    if json:
        sys.stdout.write(report.as_json(made).decode() + "\n")
    else:
        report.show(made, out)
    sys.exit(DOES_NOT_FIT if made.verdict is LlamaVerdict.NOT else 0)


def _climb(
    models: Sequence[str],
    given: Sequence[str],
    hardware: Hardware,
    traffic: Traffic | None,
    allowed: Sequence[Quality],
    out: Console,
    *,
    json: bool,
) -> NoReturn:
    """Print the ladder, and end with whether a rung holds."""
    from engine.plan import ladder_report  # noqa: PLC0415
    from engine.plan.gguf import GgufError  # noqa: PLC0415
    from engine.plan.ladder import climb  # noqa: PLC0415
    from engine.plan.llama.said import UnknownModelError  # noqa: PLC0415
    from engine.plan.llama.settings import GivenError  # noqa: PLC0415
    from engine.plan.named import read_named  # noqa: PLC0415

    machine = _machine(hardware)
    try:
        checkpoints = read_named(models, given, hardware, os.environ, traffic=traffic, host_bytes=machine.host_bytes)
        made = climb(checkpoints, machine, allowed=allowed)
    except GgufError as error:
        fail(f"{error.cause}\n{error.remedy}")
    except (UnknownModelError, GivenError) as error:
        fail(str(error))
    if json:
        sys.stdout.write(ladder_report.as_json(made).decode() + "\n")
    else:
        ladder_report.show(made, out)
    sys.exit(DOES_NOT_FIT if made.taken is None else 0)


def _described(gguf: str) -> "LlamaModel":
    from engine.plan.gguf import GgufError, read_gguf  # noqa: PLC0415
    from engine.plan.llama.model import LlamaModel  # noqa: PLC0415
    from engine.plan.llama.said import UnknownModelError  # noqa: PLC0415

    try:
        return LlamaModel.of(read_gguf(gguf))
    except GgufError as error:
        fail(f"{error.cause}\n{error.remedy}")
    except UnknownModelError as error:
        fail(str(error))


def _machine(hardware: Hardware) -> "Machine":
    """The cards with this host, where they are its own."""
    from engine.host_cores import cores  # noqa: PLC0415
    from engine.host_memory import free_bytes  # noqa: PLC0415
    from engine.plan.llama.planner import Machine  # noqa: PLC0415

    return Machine(hardware, free_bytes(), cores()) if hardware.measured else Machine(hardware)


def _hardware(gpu: str | None, count: int | None, vram: str | None, environ: Mapping[str, str]) -> Hardware:
    """The named cards, else this machine's, else its CPU."""
    if gpu is not None and vram is not None:
        fail("--gpu and --vram say the same thing: give one")
    if gpu is not None:
        card = find(gpu)
        return Hardware(card.name, count or 1, card.total_bytes, capability=card.capability, nvlink=card.nvlink)
    if vram is not None:
        _, total = of_driver("", parse_bytes(vram))
        return Hardware(f"a card of {vram}", count or 1, total)
    here = hardware_here(environ, count)
    if here is None:
        cards = len(cards_here(environ))
        fail(f"--gpus {count}: there {'is 1 card' if cards == 1 else f'are {cards} cards'} here")
    if here.cpu and count is not None:
        fail("--gpus counts cards, and there is none here: name one with --gpu or --vram")
    return here
