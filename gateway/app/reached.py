"""The endpoints as requests reach them: their addresses, keys and certificates, changed while kvgate serves."""

from collections.abc import Callable, Mapping

from gateway.admission.events import EndpointId
from gateway.app.opened import Access
from gateway.pools.directory import Directory, Endpoint
from gateway.pools.interface import Watch
from gateway.relay.engine_questions import EngineQuestions
from gateway.relay.http_upstream import HttpUpstream
from gateway.tokens.engine_count import Target
from gateway.wire.engine_kinds import KINDS, VLLM


class Reached:
    """Adds the configured endpoints to a directory. They leave it when the owner of the cores says so.

    Args:
        directory: of the endpoints.
        upstream: is told each endpoint's TLS context.
        watch: finds the watch over an endpoint.
    """

    def __init__(
        self,
        directory: Directory,
        upstream: HttpUpstream,
        *,
        watch: Callable[[EndpointId], Watch],
    ) -> None:
        self._directory = directory
        self._upstream = upstream
        self._watch = watch
        self._configured: Mapping[EndpointId, Access] = {}

    def target(self, endpoint: Endpoint) -> Target:
        """An endpoint as it is asked for counts."""
        kind = VLLM if endpoint.identity is None else KINDS[endpoint.identity.kind]
        ask = EngineQuestions(self._upstream, endpoint.base_url, endpoint.api_key)
        return Target(endpoint.base_url, ask, kind)

    def follow(self, configured: Mapping[EndpointId, Access]) -> None:
        """Add the endpoints that are new, and reach the others as configured from the next request on."""
        self._configured = configured
        for endpoint, access in configured.items():
            self._reach(endpoint, access)

    def left(self, endpoint: Endpoint) -> None:
        """Forget how to reach an endpoint that is gone, unless it is configured again."""
        self._upstream.forget(endpoint.base_url)
        access = self._configured.get(endpoint.id)
        if access is not None:  # it was removed and added again before the owner could say that it is gone
            self._reach(endpoint.id, access)

    def _reach(self, endpoint: EndpointId, access: Access) -> None:
        known = self._directory.endpoints.get(endpoint)
        if known is None:
            watch = self._watch(endpoint)
            self._directory.add(Endpoint(endpoint, access.base_url, access.api_key, access.model, watch))
        else:
            self._upstream.forget(known.base_url)
            known.base_url, known.api_key = access.base_url, access.api_key
        self._upstream.trust(access.base_url, access.tls)
