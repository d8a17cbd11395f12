import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.events import Arrived, Capacity, Demand, EndpointId, RequestId, Verdict
from gateway.admission.outcomes import Outcome
from gateway.app.parent import Parent
from gateway.app.together import Together
from gateway.config.settings import Settings
from gateway.endpoints.identity import Identity
from gateway.ops.metrics import Metrics
from gateway.ops.pictures.digest import Digest
from gateway.pools.admission import PROGRESS_INTERVAL, Admission, RejectedError
from tests.unit.app.configured import access

ONE, TWO = (EndpointId(f"127.0.0.1:{port}") for port in (1, 2))
CAPACITY = Capacity(max_model_len=1000, kv_blocks=100, max_num_seqs=1)


@asynccontextmanager
async def together_of(moved: list[Collection[RequestId]] | None = None) -> AsyncIterator[Together]:
    """The owner of two endpoints, at which nobody listens; not started yet."""
    nothing = dict.fromkeys(("up", "down", "gone", "evacuate", "expire"), lambda *_: None)
    follower: Any = SimpleNamespace(**nothing)
    settings = Settings.model_validate({"server": {"state_dir": "none"}})
    progressed = ([] if moved is None else moved).append
    endpoints = access(f"http://{ONE}", f"http://{TWO}")
    core = Together(
        settings,
        endpoints,
        follower,
        clock=time.monotonic,
        progressed=progressed,
        metrics=Metrics("0"),
        digest=Digest,
        launched={TWO: None},
        parent=Parent(),
    )
    try:
        yield core
    finally:
        await core.stop()


def serves(core: Together, endpoint: EndpointId, model: str) -> Admission:
    core.cores.up(endpoint, Identity((model,), (), None, 1000, "0.32.0"), CAPACITY)
    return core.admission(model)


def admit(admission: Admission, number: int) -> asyncio.Task[Any]:
    return asyncio.create_task(admission.admit(Arrived(RequestId(number), Demand((100,), 500))))


async def test_each_model_is_asked_through_an_admission_of_its_own() -> None:
    async with together_of() as core:
        one, two = serves(core, ONE, "m"), serves(core, TWO, "n")
        assert [(await admit(one, 1)).endpoint, (await admit(two, 2)).endpoint] == [ONE, TWO]
        assert {model: load.sequences for model, load in core.loads().items()} == {"m": 1, "n": 1}
        assert core.admission("m") is one


async def test_what_waits_for_a_model_that_went_is_sent_when_it_comes_again() -> None:
    async with together_of() as core:
        before = serves(core, ONE, "m")
        await admit(before, 1)
        waiting = admit(before, 2)
        serves(core, ONE, "n")
        before.finish(RequestId(1), Verdict.DONE, 5)
        await asyncio.sleep(0)
        assert not waiting.done(), "no endpoint serves the model that it waits for"
        after = serves(core, ONE, "m")
        assert (await waiting).endpoint == ONE
        after.finish(RequestId(2), Verdict.DONE, 5)
        assert core.loads()["m"].sequences == 0


@pytest.mark.usefixtures("hurried")
async def test_the_front_hears_of_progress_in_batches() -> None:
    moved: list[Collection[RequestId]] = []
    async with together_of(moved) as core:
        admission = serves(core, ONE, "m")
        await admit(admission, 1)
        admission.first_tokens(RequestId(1), 1)
        admission.progress(RequestId(1), 2)
        await asyncio.sleep(2 * PROGRESS_INTERVAL)
        assert [list(requests) for requests in moved] == [[1]]


async def test_the_watch_over_an_endpoint_is_its_monitor_and_tells_its_status() -> None:
    async with together_of() as core:
        monitors = core.monitors
        assert [core.watch(ONE), core.watch(TWO)] == [monitors[ONE], monitors[TWO]]
        assert [(status.id, status.state) for status in core.statuses()] == [
            (monitor.status.id, monitor.status.state) for monitor in monitors.values()
        ]
        core.start()
        await asyncio.wait_for(core.settled(), 5)
        assert all(monitor.probed.is_set() for monitor in monitors.values())


async def test_who_waits_is_refused_when_the_front_leaves() -> None:
    async with together_of() as core:
        admission = serves(core, ONE, "m")
        await admit(admission, 1)
        waiting = admit(admission, 2)
        await asyncio.sleep(0)
        core.leave()
        with pytest.raises(RejectedError) as refused:
            await waiting
        assert refused.value.command.outcome is Outcome.DRAINING


async def test_once_it_has_stopped_nothing_of_it_runs_any_more() -> None:
    async with together_of() as core:
        core.start()
        admission = serves(core, ONE, "m")
        admission.first_tokens(RequestId(1), 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert admission._timer is not None
    assert admission._timer.cancelled()
