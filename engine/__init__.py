"""The vLLM processes behind the gateway: their setup, launch, supervision, restart and diagnosis."""
