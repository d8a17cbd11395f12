"""The account of one endpoint's KV cache: the blocks that requests in flight hold, and the engine's gauges."""
