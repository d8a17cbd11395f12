from dataclasses import replace

import pytest

from gateway.admission.commands import Dispatch
from gateway.admission.events import Arrived, Demand, EndpointId, Finished, Progress, RequestId, Verdict
from gateway.tokens.count import PromptCount, Source
from gateway.tokens.features import Kind
from gateway.wire.request import Api

ONE = RequestId(1)


@pytest.mark.parametrize(
    ("made", "field", "other"),
    [
        (Demand((1,), 2), "n", 3),
        (Arrived(ONE, Demand((1,), 2)), "band", 1),
        (Finished(ONE, Verdict.DONE), "completion_tokens", 4),
        (Progress(((ONE, 1),)), "generated", ()),
        (Dispatch(ONE, EndpointId("a")), "would", "queued"),
        (PromptCount((1,), Source.LOCAL, Kind(Api.CHAT)), "prompts", (2,)),
    ],
)
def test_what_each_request_makes_compares_and_hashes_by_its_fields_and_has_no_others(made, field, other):
    same, differs = replace(made), replace(made, **{field: other})
    assert (same, hash(same)) == (made, hash(made))
    assert differs != made
    assert len({made, same, differs}) == 2
    with pytest.raises(AttributeError):
        made.another = 1
