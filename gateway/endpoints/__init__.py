"""The watch over each vLLM: its health, its metrics, its identity."""
