"""Configured endpoints for tests. Nobody listens at any of them."""

from collections.abc import Mapping
from typing import Any

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access, read_named_files
from gateway.config.settings import Settings


def access(*urls: str, **fields: Any) -> Mapping[EndpointId, Access]:
    """How to reach an endpoint at each URL."""
    models = [{"endpoints": [{"url": url, **fields}]} for url in urls]
    return read_named_files(Settings.model_validate({"models": models})).endpoints
