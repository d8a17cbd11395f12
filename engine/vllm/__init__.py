"""vLLM, as an engine that kvgate launches."""
