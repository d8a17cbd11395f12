"""The raw ASGI application that every request meets first."""

import asyncio
from collections.abc import Callable

import structlog

from gateway.admission.outcomes import Outcome
from gateway.ops.otlp.trace import Trace
from gateway.relay.body_intake import read_request
from gateway.relay.client_departure import while_connected
from gateway.relay.client_identity import Client, UnknownKeyError
from gateway.relay.cross_origin import answer_preflight, is_preflight, permission, permitting
from gateway.relay.exchange import Exchange, RefusedError, Reporter
from gateway.relay.fallback import serve
from gateway.relay.models import list_models
from gateway.relay.passthrough import follow, relay
from gateway.relay.payload import Payload
from gateway.relay.plane import Plane
from gateway.relay.routes import Action, Route, find, methods
from gateway.runtime.descriptors import lacking
from gateway.server.asgi import Application, ClientGoneError, Receive, Scope, Send, send_answer
from gateway.wire.errors import SHUTTING_DOWN, ErrorAnswer, openai_error

_FULL = "kvgate has no file descriptor left for this request. Please retry."
_log = structlog.get_logger("kvgate.relay")


class Gateway:
    """Serves the paths of the route table; hands all others to the admin application.

    Args:
        plane: what all requests share.
        reporter: told of every exchange's end.
        admin: health, metrics, state, and the 404 for everything else. May be replaced.
        record: begins a request's trace; None where spans are not recorded.
    """

    def __init__(
        self,
        plane: Plane,
        reporter: Reporter,
        admin: Application,
        record: Callable[[Scope, str], Trace | None] | None = None,
    ) -> None:
        self._plane = plane
        self._reporter = reporter
        self._record = record
        self.admin = admin
        self.draining = False
        self.active = 0
        """Requests that are being served."""
        self._idle = asyncio.Event()

    async def wait_idle(self, timeout: float) -> bool:
        """Wait until no request is being served; False if that takes more than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while self.active:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["method"] == "HEAD":  # served as GET; the server has its own scope and drops the body
            scope = {**scope, "method": "GET"}
        path: str = scope["path"]
        route = find(scope["method"], path)
        allowed = methods(path) if route is None else ()
        if route is None and not allowed:
            await self.admin(scope, receive, send)
            return
        permitted = permission(scope, self._plane.settings.server.allowed_origins)
        if permitted is not None:
            scope, send = permitting(scope, send, permitted)
        if route is not None:
            self.active += 1
            try:
                await self._serve(route, scope, receive, send)
            finally:
                self.active -= 1
                if not self.active:
                    self._idle.set()
        elif permitted is not None and is_preflight(scope):
            await answer_preflight(scope, send, allowed)
        else:
            await send_answer(send, _wrong_method(scope["method"], allowed))

    async def _serve(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        plane = self._plane
        exchange = Exchange.begin(scope, send, plane.clock, route.api)
        if self._record is not None and (recorded := self._record(scope, route.path)) is not None:
            exchange.recorded, exchange.trace = recorded, f"{recorded.context.trace_id:032x}"
        outcome = Outcome.INTERNAL_ERROR
        try:
            client = plane.clients.identify(scope)
            exchange.client = client
            if self.draining:
                outcome = await exchange.refuse(Outcome.DRAINING, SHUTTING_DOWN, retry_after=1.0, unread=receive)
                return
            with plane.bodies.payload(client.flow) as payload:
                exchange.response.begins = payload.drop
                ended = await read_request(plane.settings.server, payload, scope, receive, exchange)
                if ended is not None:
                    outcome = ended
                    return
                exchange.received = plane.clock()
                with while_connected(scope, receive, plane.turnstile):
                    outcome = await self._act(route, scope, exchange, client, payload)
        except UnknownKeyError:
            message = "The API key is missing or not known here. Send it as `Authorization: Bearer KEY`."
            outcome = await exchange.refuse(Outcome.UNAUTHORIZED, message)
        except ClientGoneError:
            outcome = Outcome.CLIENT_CLOSED
        except asyncio.CancelledError:
            outcome = Outcome.CLIENT_CLOSED
            raise
        except Exception as error:  # noqa: BLE001  # a defect of ours must not leave the client without an answer
            outcome = await _failed(exchange, error)
        finally:
            self._reporter.ended(exchange, outcome)

    async def _act(self, route: Route, scope: Scope, exchange: Exchange, client: Client, payload: Payload) -> Outcome:
        try:
            match route.action:
                case Action.ADMIT:
                    return await serve(self._plane, scope, exchange, client, payload)
                case Action.RELAY | Action.LOOK_UP as action:
                    return await relay(self._plane, scope, exchange, payload, computes=action is Action.RELAY)
                case Action.FOLLOW:
                    return await follow(self._plane, scope, exchange, payload)
                case Action.ANSWER:
                    return await list_models(self._plane, scope, exchange)
        except RefusedError as error:
            refused = error.afresh()
        return await exchange.refuse(
            refused.outcome, refused.message, param=refused.param, retry_after=refused.retry_after
        )


async def _failed(exchange: Exchange, error: Exception) -> Outcome:
    """End a request that failed by an error of our own."""
    identifier = exchange.identifier.decode("ascii")
    if lacking(error):
        _log.warning("out of file descriptors", request_id=identifier)
        outcome, message, retry_after = Outcome.GATEWAY_FULL, _FULL, 1.0
    else:
        _log.exception("defect", request_id=identifier, error=type(error).__name__)
        outcome, message, retry_after = Outcome.INTERNAL_ERROR, "kvgate failed on this request; its log says why.", None
    if not exchange.response.answer_begun:
        await exchange.refuse(outcome, message, retry_after=retry_after)
    return outcome


def _wrong_method(method: str, allowed: tuple[str, ...]) -> ErrorAnswer:
    listed = ", ".join(allowed)
    message = f"{method} is not a method of this path; it takes {listed}."
    body = openai_error(message, "invalid_request_error", "method_not_allowed")
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"allow", listed.encode()),
        (b"x-should-retry", b"false"),
    )
    return ErrorAnswer(405, headers, body)
