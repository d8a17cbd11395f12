"""kvgate: an admission-control reverse proxy in front of vLLM."""

__version__ = "0.2.0"
