import json

import pytest

from gateway.wire.token_ids import IdsField, with_ids, without_ids

BODY = b' {"messages": [ {"role": "user", "content": "the \\u00e9"} ] , "n":1 } \n'


@pytest.mark.parametrize("field", IdsField)
def test_ids_are_added_beside_the_clients_own_bytes(field: IdsField) -> None:
    body = with_ids(BODY, field, b"[1,22,333]")
    assert body.startswith(BODY[: BODY.rindex(b"}")])
    fields = json.loads(body)
    inside = fields if field is IdsField.OWN else fields["kv_transfer_params"]
    assert inside["prompt_token_ids"] == [1, 22, 333]
    assert fields["messages"] == json.loads(BODY)["messages"]
    assert without_ids(body, BODY.rindex(b"}")) == BODY.rstrip()
