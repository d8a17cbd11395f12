"""A fake vLLM server, for scale and for faults; its shapes are held against a real one by an integration test."""

from tests.fakes.vllm.connection import SeenRequest
from tests.fakes.vllm.faults import Fault, FaultKind
from tests.fakes.vllm.server import FakeSettings, FakeVllm

__all__ = ["FakeSettings", "FakeVllm", "Fault", "FaultKind", "SeenRequest"]
