"""The account of one endpoint's KV cache: the blocks that requests in flight hold, and the engine's gauges.

How many tokens a request may generate, the relay says (`relay/demand.py`); how many it will, `prediction/`.
"""
