"""Print how near a plan comes to a real vLLM, family by family.

    python -m tests.proof.plan_accuracy [--out docs/results/plan-accuracy.json]

The engine's side is vLLM's own: the "KV cache size" it logs and the bytes of the parameters it loads, of engines
started on small models with random weights. kvgate's side is read from the same config.json. About two minutes.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.interpreter import VLLM_VERSION, engine_python
from engine.plan.kv import Device, KvLayout
from engine.plan.parameters import estimated
from engine.plan.shape import ModelShape, UnknownShapeError
from tests.proof.plan_models import CASES, Case

SCRIPT = Path(__file__).with_name("vllm_sizes.py")
RESULT = Path("docs/results/plan-accuracy.json")
TIMEOUT = 600.0
"""Seconds; two cores need about 100, and a busy machine more."""


@dataclass(frozen=True)
class Row:
    """One model: what vLLM says of it, and what the plan says. `error` is vLLM's, where it would not start."""

    name: str
    what: str
    engine_tokens: int = 0
    plan_low: int = 0
    plan_high: int = 0
    engine_bytes: int = 0
    plan_bytes: int = 0
    """0 where the config alone does not tell."""
    error: str = ""

    @property
    def off(self) -> float:
        """How far the nearer end of the plan's range is from the engine's figure, as a fraction of that."""
        nearest = min(max(self.engine_tokens, self.plan_low), self.plan_high)
        return nearest / self.engine_tokens - 1

    @property
    def weights_off(self) -> float:
        """The same of the weights of the fullest rank, which the plan estimates from the config alone."""
        return self.plan_bytes / self.engine_bytes - 1


def measure(python: Path, cases: Sequence[Case] = CASES) -> list[Row]:
    """Ask a real vLLM and the plan about each case."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder, "cases.json")
        asked.write_text(json.dumps([asdict(case) for case in cases]))
        done = subprocess.run(
            [python, SCRIPT, asked],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    lines = [line.removeprefix("ANSWER ") for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answers = {answer["name"]: answer for answer in map(json.loads, lines)}
    if len(answers) < len(cases):
        raise RuntimeError(f"vLLM answered {len(answers)} of {len(cases)} cases:\n{done.stderr[-2000:]}")
    return [_row(case, answers[case.name]) for case in cases]


def _row(case: Case, answer: dict) -> Row:
    if "error" in answer:
        return Row(case.name, case.what, error=answer["error"])
    ranks = {
        "tensor_parallel": case.args.get("tensor_parallel_size", 1),
        "pipeline_parallel": case.args.get("pipeline_parallel_size", 1),
    }
    shape = ModelShape.from_config(case.config)
    layout = KvLayout.of(
        shape,
        kv_cache_dtype=case.args.get("kv_cache_dtype", "auto"),
        dtype=case.args["dtype"],
        # On some CPUs vLLM keeps states in float32, whatever it is asked for.
        state_dtype=answer["state_dtype"],
        block_size=case.args.get("block_size"),
        max_num_batched_tokens=answer["max_num_batched_tokens"],
        device=Device.CPU,
        **ranks,
    )
    tokens = layout.tokens(case.args["kv_cache_memory_bytes"], answer["max_model_len"])
    try:
        weights = estimated(shape).per_rank(shape, dtype=case.args["dtype"], **ranks)
    except UnknownShapeError:
        weights = (0,)
    return Row(
        case.name,
        case.what,
        answer["tokens"],
        tokens.low,
        tokens.high,
        max(answer["parameter_bytes"]),
        max(weights),
    )


def table(rows: Sequence[Row]) -> str:
    """Draw the rows for a terminal."""
    lines = [f"{'model':16}{'':42}{'KV tokens':>11}{'plan':>11}{'off':>9}{'weights':>12}{'off':>9}"]
    for row in rows:
        if row.error:
            lines.append(f"{row.name:16}vLLM would not start: {row.error[:90]}")
            continue
        plan = str(row.plan_low) if row.plan_low == row.plan_high else f"{row.plan_low} to {row.plan_high}"
        lines.append(
            f"{row.name:16}{row.what:42}{row.engine_tokens:>11}{plan:>11}{row.off:>9.2%}"
            f"{row.engine_bytes:>12}" + (f"{row.weights_off:>9.2%}" if row.plan_bytes else f"{'-':>9}")
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT, help="file of the result")
    out: Path = parser.parse_args().out
    rows = measure(engine_python())
    out.write_text(json.dumps({"vllm": VLLM_VERSION, "models": [asdict(row) for row in rows]}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
