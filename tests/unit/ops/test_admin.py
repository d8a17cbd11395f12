import asyncio
import json
import math

import httpx
import pytest
import schemathesis
from hypothesis import settings

from gateway.admission.explanation import Candidate, Explanation
from gateway.admission.outcomes import Outcome
from gateway.ops import admin
from gateway.ops.admin import Part, admin_app
from gateway.ops.explained import Explained
from gateway.ops.metrics import Metrics
from gateway.ops.pictures import broadcast as broadcasts
from gateway.ops.pictures.broadcast import Broadcast
from gateway.ops.state import EndpointState, GatewayState, UnknownEndpointError, UnknownModelError
from gateway.wire.errors import error_answer
from gateway.wire.request import Api
from tests.until import PATIENCE

ID = "127.0.0.1:8001"


class Source:
    def __init__(self):
        self.ready = False
        self.healthy = False
        self.draining = False
        self.drained = False
        self.adapters = {}
        self.answers = True

    async def state(self):
        if not self.answers:
            raise TimeoutError
        return GatewayState(
            version="0.1.0",
            mode="enforce",
            draining=self.draining,
            ready=self.ready,
            endpoints=(
                EndpointState(
                    id=ID,
                    url=f"http://{ID}/",
                    healthy=self.healthy,
                    state="draining" if self.drained else "up",
                    reason="",
                    since_seconds=1.5,
                    model="m",
                    models=("m", *self.adapters),
                    adapters=self.adapters,
                ),
            ),
        )

    async def picture(self, after):
        raise TimeoutError  # nobody decides

    async def drain(self, endpoint_id):
        self._set(endpoint_id, True)

    async def undrain(self, endpoint_id):
        self._set(endpoint_id, False)

    async def give(self, model, adapter, path):
        if model != "m":
            raise UnknownModelError(model)
        if path is None:
            self.adapters.pop(adapter, None)
        else:
            self.adapters[adapter] = "loaded" if path == "/good" else "it has no config"

    def _set(self, endpoint_id, drained):
        if endpoint_id != ID:
            raise UnknownEndpointError(endpoint_id)
        self.drained = drained


class Explainer:
    """Tells back what it was asked; a body without `model` it refuses."""

    async def explain(self, scope, receive, *, api, flow):
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if b"model" not in body:
            return error_answer(Outcome.QUEUE_FULL, "Full.", api=api, retry_after=2.0)
        return Explained(
            model="m",
            api=api or Api.CHAT,
            flow=flow or "address",
            band=0,
            counted="local",
            prompt_tokens=7,
            max_tokens=5,
            sequences=1,
            decision=DECISION,
        )


DECISION = Explanation(
    verdict="queue",
    rule="order",
    endpoint=ID,
    would=None,
    prompt_tokens=7,
    holds_blocks=1,
    predicted_output=3,
    predicted_wait=math.inf,
    predicted_prefill=0.1,
    ttft_target=5.0,
    retry_after=None,
    candidates=(
        Candidate(
            ID,
            takes=False,
            rule="forecast",
            lacks=10.5,
            unit="blocks",
            usage=0.5,
            forecast_without=0.9,
            forecast_with=1.1,
            cached_tokens=0,
        ),
    ),
)


def build(source, **how):
    async def exposition(*, openmetrics):
        return Metrics("0.1.0").exposition(await source.state(), openmetrics=openmetrics)

    broadcast = Broadcast(source.picture)
    return admin_app(source, exposition, Explainer(), how.pop("broadcast", broadcast), "0.1.0", **how)


def ended(source):
    """A broadcast that is over at once: the test's transport reads an answer to its end."""
    made = Broadcast(source.picture)
    made.close()
    return made


def client(source, **how):
    transport = httpx.ASGITransport(build(source, **how), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")


@pytest.fixture
def source():
    return Source()


@pytest.fixture
async def open_admin(source):
    async with client(source) as made:
        yield made


@pytest.fixture
async def locked_admin(source):
    async with client(source, admin_key="sésame", broadcast=ended(source)) as made:
        yield made


def assert_error(answer, status, code):
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"].endswith(".")


async def test_livez_looks_at_nothing(source, open_admin):
    source.draining = True
    assert (await open_admin.get("/livez")).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/health", "/readyz?strict=1"])
async def test_not_ready_before_an_endpoint_was_healthy(open_admin, path):
    assert_error(await open_admin.get(path), 503, "not_ready")


async def test_who_is_not_ready_says_so_without_asking_who_decides(source, open_admin):
    source.answers = False
    assert "no gateway of the tier decides" in (await open_admin.get("/readyz")).text
    source.ready = True
    assert "does not answer" in (await open_admin.get("/readyz")).text


async def test_ready_while_a_queue_can_wait_for_the_engine(source, open_admin):
    source.ready, source.healthy = True, False
    assert (await open_admin.get("/readyz")).status_code == 200
    assert (await open_admin.get("/health")).status_code == 200
    assert_error(await open_admin.get("/readyz?strict=1"), 503, "no_endpoint")
    source.healthy = True
    assert (await open_admin.get("/readyz?strict=1")).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_not_ready_while_draining(source, open_admin, path):
    source.ready = source.healthy = source.draining = True
    assert_error(await open_admin.get(path), 503, "draining")


async def test_version(open_admin):
    assert (await open_admin.get("/version")).json() == {"version": "0.1.0", "name": "kvgate"}


async def test_state_shows_every_endpoint(open_admin):
    state = (await open_admin.get("/kvgate/state")).json()
    assert [endpoint["id"] for endpoint in state["endpoints"]] == [ID]


async def test_metrics_are_prometheus_text(open_admin):
    answer = await open_admin.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'kvgate_endpoint_healthy{{endpoint="{ID}"}} 0.0' in answer.text


async def test_metrics_are_openmetrics_for_who_asks_for_it(open_admin):
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    answer = await open_admin.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize("path_id", [ID, ID.replace(":", "%3A")])
async def test_an_endpoint_is_drained_and_undrained(source, open_admin, path_id):
    answer = await open_admin.post(f"/kvgate/endpoints/{path_id}/drain")
    assert (answer.status_code, answer.json()["state"]) == (200, "draining")
    assert source.drained
    answer = await open_admin.post(f"/kvgate/endpoints/{path_id}/undrain")
    assert (answer.status_code, answer.json()["state"]) == (200, "up")
    assert not source.drained


async def test_an_adapter_is_loaded_and_unloaded_on_each_endpoint_of_its_model(open_admin):
    async def change(what, **adapter):
        return await open_admin.post(f"/kvgate/adapters/{what}", json=adapter)

    of = {"model": "m", "name": "a"}
    assert (await change("load", **of, path="/good")).json() == {"endpoints": {ID: "loaded"}}
    assert (await change("unload", **of)).json() == {"endpoints": {ID: "unloaded"}}
    assert (await change("load", **of, path="/bad")).json() == {"endpoints": {ID: "it has no config"}}
    assert_error(await change("load", model="n", name="a", path="/good"), 404, "model_not_found")
    assert_error(await change("load", **of), 400, "invalid_request")
    assert_error(await change("load", model="m", name="m", path="/good"), 400, "invalid_request")


async def test_how_an_adapter_is_on_an_endpoint_that_need_not_have_it_yet_or_any_more(source, open_admin, monkeypatch):
    """An engine has it a moment before requests for it know that; another owner knows nothing of it."""
    looks = []

    async def give(model, adapter, path):
        source.adapters = {"b": "loaded"} if path == "/lost" else {adapter: "not yet, down: nobody listens"}

    async def state(state=source.state):
        looks.append(shown := await state())
        (endpoint,) = shown.endpoints
        models = () if len(looks) < 4 else endpoint.models
        return shown.model_copy(update={"endpoints": (endpoint.model_copy(update={"models": models}),)})

    async def change(what, **adapter):
        answer = await open_admin.post(f"/kvgate/adapters/{what}", json={"model": "m", **adapter})
        return answer.json()["endpoints"][ID]

    monkeypatch.setattr(source, "state", state)
    assert await change("load", name="a", path="/good") == "loaded"
    assert len(looks) == 4, "it is loaded once it is listed"
    monkeypatch.setattr(source, "give", give)
    assert await change("load", name="a", path="/good") == "not yet, down: nobody listens"
    assert await change("unload", name="a") == "not yet, down: nobody listens"
    assert (await change("load", name="a", path="/lost")).startswith("given up")


@pytest.mark.parametrize("action", ["drain", "undrain"])
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "gateway.example"},
        {"host": "10.0.0.1:8080"},
        {"x-forwarded-for": "127.0.0.1"},
        {"origin": "http://page.example"},
    ],
)
async def test_without_a_key_only_this_machine_changes_anything(source, open_admin, action, headers):
    answer = await open_admin.post(f"/kvgate/endpoints/{ID}/{action}", headers=headers)
    assert_error(answer, 403, "admin_key_required")
    assert "auth.admin_key" in answer.json()["error"]["message"]
    assert not source.drained
    for path in ("/metrics", "/kvgate/state"):
        assert (await open_admin.get(path, headers=headers)).status_code == 200
    assert (await open_admin.post("/kvgate/explain", json={"model": "m"}, headers=headers)).status_code == 200


async def test_a_key_changes_things_from_anywhere(source, locked_admin):
    headers = {"authorization": "Bearer sésame".encode(), "host": "gateway.example", "x-forwarded-for": "10.0.0.9"}
    assert (await locked_admin.post(f"/kvgate/endpoints/{ID}/drain", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://page.example", 403), ("null", 403), ("https://gateway.example", 200), ("http://gateway.example", 200)],
)
async def test_another_sites_page_changes_nothing_with_the_key_either(locked_admin, origin, status):
    headers = {"authorization": "Bearer sésame".encode(), "host": "gateway.example", "origin": origin}
    answer = await locked_admin.post(f"/kvgate/endpoints/{ID}/drain", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize("action", ["drain", "undrain"])
async def test_an_unknown_endpoint_is_not_found(open_admin, action):
    assert_error(await open_admin.post(f"/kvgate/endpoints/nowhere:1/{action}"), 404, "endpoint_not_found")


async def test_a_request_is_explained(open_admin):
    answer = await open_admin.post("/kvgate/explain?api=messages&flow=alice", json={"model": "m"})
    explained = answer.json()
    assert answer.status_code == 200
    assert (explained["api"], explained["flow"]) == ("messages", "alice")
    assert explained["decision"]["candidates"][0]["rule"] == "forecast"
    assert explained["decision"]["predicted_wait"] is None, "JSON has no infinity"


async def test_what_cannot_be_explained_is_answered_as_the_request_would_be(open_admin):
    answer = await open_admin.post("/kvgate/explain", json={})
    assert_error(answer, 429, "queue_full")
    assert answer.headers["retry-after"] == "2"
    assert_error(await open_admin.post("/kvgate/explain?api=x", json={"model": "m"}), 400, "invalid_request")


async def test_events_are_not_kept_anywhere_on_the_way(source):
    async with client(source, broadcast=ended(source)) as asked:
        answer = await asked.get("/kvgate/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")


async def test_only_so_many_may_follow(source, monkeypatch):
    monkeypatch.setattr(broadcasts, "MOST", 0)
    async with client(source) as asked:
        answer = await asked.get("/kvgate/events")
    assert_error(answer, 503, "too_many_readers")
    assert answer.headers["retry-after"] == "10"


PROTECTED = [
    ("GET", "/metrics"),
    ("GET", "/kvgate/state"),
    ("GET", "/kvgate/events"),
    ("POST", f"/kvgate/endpoints/{ID}/drain"),
    ("POST", f"/kvgate/endpoints/{ID}/undrain"),
    ("POST", "/kvgate/adapters/load"),
    ("POST", "/kvgate/adapters/unload"),
    ("POST", "/kvgate/explain"),
]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic c2VzYW1l", "Bearer s\xe9sam"])
async def test_the_admin_routes_need_the_key(source, locked_admin, method, path, authorization):
    headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
    answer = await locked_admin.request(method, path, headers=headers)
    assert_error(answer, 401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not source.drained


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_the_key_opens_them(locked_admin, method, path):
    headers = {"authorization": "Bearer sésame".encode(), "content-type": b"application/json"}
    body = b'{"model":"m","name":"a","path":"/good"}'
    answer = await locked_admin.request(method, path, headers=headers, content=body)
    assert answer.status_code == 200


async def test_nobody_without_the_key_has_a_large_body_kept(locked_admin):
    read = 0

    async def pieces():
        nonlocal read
        for _ in range(100):
            read += 2**16
            yield bytes(2**16)

    answer = await locked_admin.post("/kvgate/adapters/load", content=pieces())
    assert_error(answer, 413, "body_too_large")
    assert read < 2**18


@pytest.mark.parametrize("field", ["model", "name", "path"])
async def test_an_adapter_that_cannot_be_told_to_an_engine_is_not_taken(source, open_admin, field):
    for unusable in ("", "\ud800"):  # half a character, as of a file's name that is not UTF-8
        body = json.dumps({"model": "m", "name": "a", "path": "/good", field: unusable}).encode()
        answer = await open_admin.post(
            "/kvgate/adapters/load", content=body, headers={"content-type": "application/json"}
        )
        assert_error(answer, 400, "invalid_request")
    assert not source.adapters


async def test_nobody_is_awaited_long_for_a_body(locked_admin, monkeypatch):
    monkeypatch.setattr(admin, "_BODY_TIMEOUT", 0.05)

    async def pieces():
        yield b"{"
        await asyncio.sleep(3600)

    async with asyncio.timeout(PATIENCE):
        assert_error(await locked_admin.post("/kvgate/adapters/unload", content=pieces()), 408, "timeout")


@pytest.mark.parametrize("path", ["/livez", "/version"])
async def test_probes_need_no_key(locked_admin, path):
    assert (await locked_admin.get(path)).status_code == 200


async def test_other_paths_and_methods_are_refused_in_openai_shape(open_admin):
    assert_error(await open_admin.get("/kvgate/nothing"), 404, "not_found")
    assert_error(await open_admin.get("/livez/"), 404, "not_found")
    answer = await open_admin.delete("/kvgate/state")
    assert_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    assert_error(await open_admin.get("/readyz?strict=perhaps"), 400, "invalid_request")


async def test_a_failure_of_ours_is_told_without_its_reason(source):
    async def fail():
        raise RuntimeError("the reason")

    source.state = fail
    async with client(source) as broken:
        answer = await broken.get("/kvgate/state")
    assert_error(answer, 500, "internal_error")
    assert "the reason" not in answer.text


async def test_a_silent_owner_is_no_failure_of_ours(source):
    async def silent():
        raise TimeoutError

    source.state = silent
    async with client(source) as asked:
        for path in ("/readyz", "/kvgate/state"):
            assert_error(await asked.get(path), 503, "not_ready")


HEALTH, ADMIN = {"livez", "readyz", "health", "version"}, {"metrics", "kvgate"}


@pytest.mark.parametrize(
    ("parts", "serves"), [(Part.HEALTH, HEALTH), (Part.ADMIN, ADMIN), (Part.HEALTH | Part.ADMIN, HEALTH | ADMIN)]
)
def test_each_part_can_have_a_port_of_its_own(source, parts, serves):
    paths = {path.split("/")[1] for path in build(source, parts=parts).openapi()["paths"]}
    assert paths == serves


@pytest.mark.parametrize("path", ["docs", "openapi.json"])
async def test_the_routes_are_documented(open_admin, path):
    assert (await open_admin.get(f"/{path}")).status_code == 200


ready = Source()
ready.ready = ready.healthy = True
# 403: who may change nothing hears that first, whatever is in the body.
refusals = {"expected-statuses": ["400", "403", "404", "405", "414", "429"]}
config = schemathesis.config.SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": refusals}})
schema = schemathesis.openapi.from_asgi("/openapi.json", build(ready, broadcast=ended(ready)), config=config)


@schema.parametrize()
@settings(max_examples=15)
def test_every_answer_is_as_the_schema_says(case):
    case.call_and_validate()
