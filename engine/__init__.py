"""The engines behind the gateway, vLLM and llama-server: their setup, launch, supervision, restart and diagnosis.

- `supervisor.py` keeps programs running. For each, `runner.py` carries out what `program_lifecycle.py` decides (when to
  start, restart, end or kill), on a `process.py` that `guard.py` ends with kvgate. `judgement.py` finds why one ended.
- `spec.py` describes an engine to launch. `arguments.py` reads its command line, `filling.py` adds to it, and
  `memory_ladder.py` lowers it where memory lacks. `assembly.py` makes a program of it.
- `interpreter.py` sets vLLM up; `vllm/` and `llama/` have what is of one kind of engine.
- `gpu.py`, `nvml.py`, `gpu_placement.py`, `room.py` and `host_*.py` know the machine.
- `plan/` computes what fits; `diagnosis/` names the cause of a failure.
"""
