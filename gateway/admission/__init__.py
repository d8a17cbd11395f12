"""The admission core: pure decisions about who may use an endpoint's KV cache, and when.

Nothing here knows of a clock, a network or a log. Events come in with the time they happened at, commands go
out; the same events give the same commands. Start with `controller.py`.
"""
