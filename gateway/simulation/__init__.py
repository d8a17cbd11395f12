"""A discrete-event model of vLLM's scheduler, with the admission core or a baseline in front of it.

`simulate(workload, machine, contender)` plays one workload against one contender. Everything random is seeded and
nothing reads a clock, so the same call gives the same result. `engine.py` is the model; `contenders.py` has the
policies that are compared.
"""
