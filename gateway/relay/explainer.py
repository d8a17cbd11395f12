"""The answer to `/kvgate/explain`: reads and counts a request like any other, then only asks the core about it."""

from gateway.admission.outcomes import Outcome
from gateway.ops.explained import Explained
from gateway.pools.admission import RejectedError
from gateway.relay.body_intake import read_within_limits
from gateway.relay.body_parsing import read
from gateway.relay.client_departure import while_connected
from gateway.relay.client_identity import Client, UnknownKeyError, peer
from gateway.relay.demand import (
    NO_ENDPOINT,
    Work,
    bounded,
    counted,
    demanded,
    parsed,
    refuse_adapter,
    refuse_background,
    refuse_overriding,
    require_endpoints,
    ttft_target,
)
from gateway.relay.destination import permit, unknown_model
from gateway.relay.editing import check_names
from gateway.relay.exchange import RefusedError
from gateway.relay.fingerprint import fingerprint
from gateway.relay.plane import Plane
from gateway.relay.stored import holder
from gateway.server.asgi import ClientGoneError, Receive, Scope
from gateway.wire.errors import ErrorAnswer, error_answer, reasons
from gateway.wire.request import Api, told_by

_FLOW = "explain"
"""Whose the work of reading and counting is, whoever is asked about: one share of it for all who ask. They may name any
flow, and without an admin key anybody may ask."""


class RelayExplainer:
    """Asks the cores what they would do. Sends nothing, except to an engine that has to count the prompt."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def explain(
        self, scope: Scope, receive: Receive, *, api: Api | None, flow: str | None
    ) -> Explained | ErrorAnswer:
        """See `gateway.ops.explained.Explainer`."""
        try:
            with self._plane.bodies.payload(_FLOW) as payload:
                await read_within_limits(self._plane.settings.server, payload, scope, receive)
                client = self._client(scope) if flow is None else self._plane.clients.named(flow)
                with while_connected(scope, receive, self._plane.turnstile):
                    if api is None:
                        api = await read(self._plane.counting, _FLOW, told_by, payload.data)
                    return await self._explained(scope, payload.data, api, client)
        except ClientGoneError:
            return _refusal(RefusedError(Outcome.INVALID_REQUEST, "The client left."), api)
        except RefusedError as refused:
            return _refusal(refused, api)

    def _client(self, scope: Scope) -> Client:
        """Whose request it would be: who asks may do so with the admin key."""
        try:
            return self._plane.clients.identify(scope)
        except UnknownKeyError:
            return Client(peer(scope))

    async def _explained(self, scope: Scope, body: bytes, api: Api, client: Client) -> Explained:
        plane = self._plane
        request = await parsed(plane.counting, _FLOW, api, body)
        target = ttft_target(scope)
        pool = plane.directory.lookup(request.model)
        if pool is None:
            raise unknown_model(plane, request.model)
        permit(client, pool, request.model)
        refuse_adapter(client, request.adapter_field)
        refuse_background(request)
        if pool.caseless:
            await check_names(plane, _FLOW, body)
        count = await counted(pool, request, _FLOW)
        require_endpoints(pool)
        refuse_overriding(pool.overriding, request)
        known_by = await fingerprint(client.flow, body, plane.hash_key)
        demand, most = bounded(pool, client, request, count, demanded(pool, request, count))
        held_by = holder(plane, request.previous_response_id)
        work = Work(request, len(body), pool, count, demand, client, target, known_by, most, held_by)
        arrival = work.arrival(plane.new_request())
        try:
            decision = await pool.admission.explain(arrival)
        except RejectedError as error:
            raise RefusedError(error.command.outcome, NO_ENDPOINT, retry_after=1.0) from None
        return Explained(
            model=pool.name,
            api=api,
            flow=arrival.flow,
            band=arrival.band,
            counted=count.source,
            prompt_tokens=arrival.demand.prompt_tokens,
            max_tokens=arrival.demand.max_tokens,
            sequences=arrival.demand.sequences,
            decision=decision,
        )


def _refusal(refused: RefusedError, api: Api | None) -> ErrorAnswer:
    answer = error_answer(
        refused.outcome, refused.message, api=api, param=refused.param, retry_after=refused.retry_after
    )
    return ErrorAnswer(answer.status, (*answer.headers, *reasons(refused.outcome)), answer.body)
