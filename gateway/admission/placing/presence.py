"""The state machine of an endpoint in its pool. Whether it is fit for traffic is decided elsewhere, by its monitor."""

from collections.abc import Mapping
from enum import Enum, auto

from gateway.admission.events import EndpointDown, EndpointGone, EndpointUp

EndpointEvent = EndpointUp | EndpointDown | EndpointGone


class Presence(Enum):
    """The presence of an endpoint."""

    LIVE = auto()
    """It takes traffic."""
    DOWN = auto()
    """It takes no new traffic for now."""
    GONE = auto()
    """It was removed. It is known until its last request has ended."""


TRANSITIONS: Mapping[tuple[Presence, type], Presence] = {
    (Presence.LIVE, EndpointUp): Presence.LIVE,  # with another capacity
    (Presence.LIVE, EndpointDown): Presence.DOWN,
    (Presence.LIVE, EndpointGone): Presence.GONE,
    (Presence.DOWN, EndpointUp): Presence.LIVE,
    (Presence.DOWN, EndpointDown): Presence.DOWN,  # for another reason
    (Presence.DOWN, EndpointGone): Presence.GONE,
    (Presence.GONE, EndpointUp): Presence.LIVE,
}
"""Any other event changes nothing."""
