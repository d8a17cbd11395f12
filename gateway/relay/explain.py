"""Answers `/kvgate/explain`: a request is read and counted as any other, and then only asked about."""

from gateway.admission.events import Tick
from gateway.admission.outcomes import Outcome
from gateway.driver import new_request
from gateway.ops.explain import Explained
from gateway.relay.asgi import (
    BodyTimeoutError,
    BodyTooLargeError,
    ClientGoneError,
    NoRoomError,
    Receive,
    Scope,
    read_body,
)
from gateway.relay.clients import Client, peer
from gateway.relay.destination import unknown_model
from gateway.relay.exchange import RefusedError
from gateway.relay.fingerprint import fingerprint
from gateway.relay.intake import NO_ROOM
from gateway.relay.plane import Plane
from gateway.relay.reading import read
from gateway.relay.understand import Work, counted, demanded, foreground, parsed, present, ttft_target
from gateway.wire.errors import ErrorAnswer, error_answer
from gateway.wire.request import Api, told_by


class RelayExplainer:
    """Asks the cores what they would do. Nothing is sent, but to count a prompt where the engine has to."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    async def explain(
        self, scope: Scope, receive: Receive, *, api: Api | None, flow: str | None
    ) -> Explained | ErrorAnswer:
        """See `gateway.ops.explain.Explainer`."""
        try:
            body = await self._read(scope, receive)
            client = self._plane.clients.named(peer(scope) if flow is None else flow)
            if api is None:
                api = await read(self._plane.counting, client.flow, told_by, body)
            return await self._explained(scope, body, api, client)
        except RefusedError as refused:
            answer = error_answer(
                refused.outcome, refused.message, api=api, param=refused.param, retry_after=refused.retry_after
            )
            reason = (b"x-kvgate-reason", refused.outcome.value.encode())
            return ErrorAnswer(answer.status, (*answer.headers, reason), answer.body)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        server = self._plane.settings.server
        try:
            return await read_body(
                scope,
                receive,
                limit=server.max_body_bytes,
                timeout=server.body_timeout,
                rate=server.body_min_rate,
                room=self._plane.arriving,
            )
        except BodyTooLargeError as error:
            message = f"The request body has {error.size} bytes or more; at most {server.max_body_bytes} are accepted."
            raise RefusedError(Outcome.BODY_TOO_LARGE, message) from None
        except NoRoomError:
            raise RefusedError(Outcome.GATEWAY_FULL, NO_ROOM, retry_after=1.0) from None
        except (BodyTimeoutError, ClientGoneError):
            message = f"The request body did not arrive: nothing came for {server.body_timeout:g} s."
            raise RefusedError(Outcome.INVALID_REQUEST, message) from None

    async def _explained(self, scope: Scope, body: bytes, api: Api, client: Client) -> Explained:
        plane = self._plane
        request = await parsed(plane.counting, client.flow, api, body)
        target = ttft_target(scope)
        pool = plane.directory.lookup(request.model)
        if pool is None:
            raise unknown_model(plane, request.model)
        foreground(request)
        count = await counted(pool, request, client.flow)
        present(pool)
        key = await fingerprint(client.flow, body)
        work = Work(request, pool, count, demanded(pool, request, count), client, target, key)
        arrival = work.arrival(new_request())
        pool.driver.handle(Tick())  # a request that arrived would find the accounts brought up to now, too
        return Explained(
            model=pool.name,
            api=api,
            flow=arrival.flow,
            band=arrival.band,
            counted=count.source,
            prompt_tokens=arrival.demand.prompt_tokens,
            max_tokens=arrival.demand.max_tokens,
            sequences=arrival.demand.sequences,
            decision=pool.driver.controller.explain(arrival, plane.clock()),
        )
