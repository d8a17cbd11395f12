"""A discrete-event model of vLLM's scheduler, with the admission core or a baseline in front of it.

`simulate(workload, machine, contender)` plays one workload against one; everything random is seeded, nothing reads a
clock, the same call gives the same result. `engine.py` is the model, `contenders.py` who is compared.
"""
