"""The stored responses that this front knows: the endpoint that made each, and whose it is."""

from collections import OrderedDict
from typing import NamedTuple

from gateway.admission.events import EndpointId

MOST = 10_000
"""Responses that are known at once."""
_LONGEST_ID = 256
"""Most characters of a response's id. vLLM's own have 37; a client may set one of any length as `request_id`."""


class StoredResponse(NamedTuple):
    """A stored response: the endpoint that made it, its model as its client named it, and whose key asked for it."""

    endpoint: EndpointId
    model: str
    key: str | None = None
    """The key's name; None if it was asked for without one."""


class StoredResponses:
    """The stored responses by id. If there are too many, the key with the most loses the one it used least lately."""

    def __init__(self) -> None:
        self._by_id: dict[str, StoredResponse] = {}
        self._of_keys: dict[str | None, OrderedDict[str, None]] = {}
        """Ids of each key, that used last at the end."""

    def remember(self, response_id: str, response: StoredResponse) -> None:
        """Note a response, unless its id is too long."""
        if len(response_id) > _LONGEST_ID:
            return
        self._forget(response_id)
        self._by_id[response_id] = response
        self._of_keys.setdefault(response.key, OrderedDict())[response_id] = None
        if len(self._by_id) > MOST:
            most = max(self._of_keys.values(), key=len)
            self._forget(next(iter(most)))

    def find(self, response_id: str) -> StoredResponse | None:
        """The response with this id, which is used now; None if it is not known."""
        response = self._by_id.get(response_id)
        if response is not None:
            self._of_keys[response.key].move_to_end(response_id)
        return response

    def _forget(self, response_id: str) -> None:
        response = self._by_id.pop(response_id, None)
        if response is None:
            return
        of_key = self._of_keys[response.key]
        del of_key[response_id]
        if not of_key:
            del self._of_keys[response.key]
