import json

import pytest

from gateway.admission.outcomes import Outcome
from gateway.relay.editing import asks_usage, edited_for, renamed_for
from gateway.relay.exchange import RefusedError
from gateway.wire.request import EDITED_INLINE_BYTES, Api, Edits, parse
from tests.fakes.plane import FakePlane

pytestmark = pytest.mark.usefixtures("hurried")


def body(**fields):
    return json.dumps({"model": "m", "messages": [], **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "asks"),
    [({"stream": True}, True), ({}, False), ({"stream": True, "stream_options": {"include_usage": True}}, False)],
)
def test_usage_is_asked_for_in_a_stream_whose_client_does_not(fields, asks):
    assert asks_usage(parse(Api.CHAT, body(**fields))) is asks


@pytest.mark.parametrize(("more", "apart"), [(0, False), (EDITED_INLINE_BYTES, True)])
async def test_a_large_body_is_edited_off_the_loop(hurried, monkeypatch, more, apart):
    plane, sizes = FakePlane(), []
    run = plane.run

    async def noted(flow, size, work, *args):
        sizes.append(size)
        return await run(flow, size, work, *args)

    monkeypatch.setattr(plane, "run", noted)
    client = plane.plane.clients.named("n")
    given = body(user="x" * more, priority=None)
    edited = await edited_for(plane.plane, client, given, parse(Api.CHAT, given), Edits(usage=False, priority=1))
    assert json.loads(edited)["priority"] == 1
    renamed = await renamed_for(plane.plane, client, given, 'an "other"')
    assert json.loads(renamed) == json.loads(given) | {"model": 'an "other"'}
    assert sizes == [len(given)] * 2 * apart


@pytest.mark.parametrize("more", [0, EDITED_INLINE_BYTES])
async def test_a_field_whose_name_is_not_utf_8_is_its_clients_mistake(hurried, more):
    # A half of a surrogate pair in bytes of its own: Python's JSON, and so vLLM, reads it.
    plane, given = FakePlane(), body(user="x" * more, priority=None).replace(b'"user"', b'"\xed\xa0\x80":1,"user"')
    client = plane.plane.clients.named("n")
    with pytest.raises(RefusedError) as edited:
        await edited_for(plane.plane, client, given, parse(Api.CHAT, given), Edits(usage=False, priority=1))
    with pytest.raises(RefusedError) as renamed:
        await renamed_for(plane.plane, client, given, "other")
    assert edited.value.outcome is renamed.value.outcome is Outcome.INVALID_REQUEST
