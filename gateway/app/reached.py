"""The endpoints as requests reach them: their addresses, keys and certificates, changed while kvgate serves."""

from collections.abc import Callable, Container, Mapping

from gateway.admission.events import EndpointId
from gateway.app.named_files import Access
from gateway.config.fallback import FallbackSettings
from gateway.pools.directory import Directory, Endpoint
from gateway.pools.interface import Watch
from gateway.relay.fallback_server import Unwatched
from gateway.tokens.engine_count import Target
from gateway.upstream.engine_questions import EngineQuestions
from gateway.upstream.http_upstream import HttpUpstream


class Reached:
    """Adds the configured endpoints to a directory. They leave it when the owner of the cores says so.

    Args:
        directory: of the endpoints.
        upstream: is told each endpoint's TLS context.
        watch: finds the watch over an endpoint.
        forget: has the owner's side of one forgotten that is not configured any more; see `Core.forget`.
        on_demand: addresses of engines that start when a request waits for them.
    """

    def __init__(
        self,
        directory: Directory,
        upstream: HttpUpstream,
        *,
        watch: Callable[[EndpointId], Watch],
        forget: Callable[[EndpointId], bool],
        on_demand: Container[str] = (),
    ) -> None:
        self._directory = directory
        self._upstream = upstream
        self._watch = watch
        self._forget = forget
        self._on_demand = on_demand
        self._configured: Mapping[EndpointId, Access] = {}

    def target(self, endpoint: Endpoint) -> Target:
        """An endpoint as it is asked for counts."""
        questions = EngineQuestions(self._upstream, endpoint.base_url, endpoint.api_key, endpoint.watch.failed)

        async def ask(path: str, body: bytes, *, silence: float, longest: float, most: int) -> tuple[int, bytes]:
            with endpoint.asked():
                status, answer = await questions(path, body, silence=silence, longest=longest, most=most)
            if endpoint.denies(status):
                endpoint.watch.failed(endpoint.denial)
            return status, answer

        return Target(endpoint.base_url, ask, endpoint.kind)

    def follow(self, configured: Mapping[EndpointId, Access]) -> None:
        """Add the endpoints that are new, and reach the others as configured from the next request on.

        Of those that are configured no more, drop what the owner does not know: it may have said earlier that they are
        gone.
        """
        self._configured = configured
        for endpoint, access in configured.items():
            self._reach(endpoint, access)
        for endpoint in self._directory.endpoints.keys() - configured.keys():
            if self._forget(endpoint):
                self._directory.gone(endpoint)

    def elsewhere(self, configured: Mapping[FallbackSettings, Access]) -> Mapping[FallbackSettings, Endpoint]:
        """The servers elsewhere, as requests reach them from now on."""
        servers = {}
        for fallback, access in configured.items():
            address = access.settings.address
            watch = Unwatched(address)
            servers[fallback] = Endpoint(
                EndpointId(address), access.base_url, access.api_key, access.model, watch, healthy=True
            )
            self._upstream.trust(access.base_url, access.tls)
        return servers

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
            on_demand = endpoint in self._on_demand
            self._directory.add(
                Endpoint(endpoint, access.base_url, access.api_key, access.model, watch, on_demand=on_demand)
            )
        else:
            self._upstream.forget(known.base_url)
            known.base_url, known.api_key, known.settings = access.base_url, access.api_key, access.model
        self._upstream.trust(access.base_url, access.tls)
