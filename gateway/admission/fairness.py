"""Whose turn it is, in tokens of service: between the flows of a band, and between the bands."""

from collections import OrderedDict
from collections.abc import Mapping

from gateway.admission.request import Request

MAX_IDLE_FLOWS = 4096
"""Flows of a band that do not wait whose service is remembered, those that left last."""
STARVED_SHARE = 0.02
"""Share of service of a band that reserved less: nobody starves. Of shares over 1 in all, nobody gets its full one."""
CREDIT = 4.0
"""Most that a band may be owed, in requests as costly as any that wait."""


class Flow:
    """What one flow of one band was given, and what it waits for. Costs are tokens of service."""

    __slots__ = ("backlog", "counter", "largest", "name", "waiting", "weight")

    def __init__(self, name: str, weight: float, counter: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = counter
        """Service it was given, over its weight. The least goes first."""
        self.backlog = 0.0
        """Cost of what waits."""
        self.largest = 0.0
        """No request that waits costs more."""
        self.waiting = 0


class Fairness:
    """Weighted fair sharing between the flows of a band: the virtual token counter (VTC, arXiv 2401.00588).

    Flows that wait all the time are given service by their weights, to within the cost of about one request each.
    Who comes back from idling starts where those are who stayed: at `level`, which rises by what each of them would
    get of all service were it split perfectly, so that an endless row of new flows cannot hold up one that waits. It
    is kept where those stand that go next. Service not used is gone, and service used too much stays a debt.
    """

    __slots__ = ("_idle", "_largest", "_level", "_weights", "active", "one_each", "several", "weight")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._level = 0.0
        self.weight = 0.0
        """Of all that wait."""
        self.one_each = 0.0
        """Cost of the `largest` of each that waits, summed."""
        self._largest = 0.0
        """No request that waits costs more, over the weight of its flow."""
        self._idle: OrderedDict[str, Flow] = OrderedDict()
        self.active: dict[str, Flow] = {}
        """Flows with somebody waiting."""
        self.several: dict[str, Flow] = {}
        """Those with more than one."""

    def govern(self, weights: Mapping[str, float]) -> None:
        """Share by other weights from now on: what each was given so far stays what it is."""
        self._weights = weights
        for flow in (*self.active.values(), *self._idle.values()):
            flow.weight = weights.get(flow.name, 1.0)
        waiting = self.active.values()
        self.weight = sum([flow.weight for flow in waiting], 0.0)
        self._largest = max([flow.largest / flow.weight for flow in waiting], default=0.0)

    def join(self, request: Request, least: float | None, top: float | None) -> Flow:
        """One more waits. `least`, `top`: as for `start`, not looked at unless its flow was idle."""
        name = request.arrival.flow
        flow = self.active.get(name)
        if flow is None:
            if top is not None:
                self._level = self._between(top)
            counter = self.start(name, least, top)
            flow = self._idle.pop(name, None) or Flow(name, self._weights.get(name, 1.0), counter)
            flow.counter = counter
            self.active[name] = flow
            self.weight += flow.weight
        flow.waiting += 1
        if flow.waiting == 2:  # noqa: PLR2004 - more than one
            self.several[name] = flow
        cost = request.cost
        flow.backlog += cost
        if cost > flow.largest:
            self.one_each += cost - flow.largest
            flow.largest = cost
            self._largest = max(self._largest, cost / flow.weight)
        return flow

    def leave(self, request: Request) -> None:
        """One no longer waits."""
        name = request.arrival.flow
        flow = self.active[name]
        flow.waiting -= 1
        flow.backlog -= request.cost
        if flow.waiting == 1:
            del self.several[name]
        elif not flow.waiting:
            self.weight -= flow.weight
            self.one_each -= flow.largest
            flow.backlog = flow.largest = 0.0
            del self.active[name]
            if not self.active:
                self.weight = self.one_each = self._largest = 0.0
            self._rest(flow)

    def start(self, name: str, least: float | None, top: float | None) -> float:
        """The counter with which a flow that is idle would wait.

        `least` is the counter of who goes first in its lane, `top` the highest of these in all lanes; None where
        nobody waits.
        """
        level = self._level if top is None else self._between(top)
        if least is not None:
            level = min(level, least + self._largest)
        flow = self._idle.get(name)
        return level if flow is None else max(flow.counter, level)

    def charge(self, name: str, tokens: float) -> bool:
        """A flow was given so much service, or less than it was charged before; True when it waits and moves forward.

        No refund takes it further in front of the others than one request: what it was charged while nobody else was
        there must not become a hoard.
        """
        flow = self.active.get(name)
        if flow is not None:
            self._level += tokens / self.weight
            before = flow.counter
            flow.counter = before + tokens / flow.weight
            if tokens >= 0:
                return False
            flow.counter = max(flow.counter, min(before, self._level - self._largest))
            return flow.counter < before
        flow = self._idle.pop(name, None)
        if flow is None:
            flow = Flow(name, self._weights.get(name, 1.0), self._level)
        self._level += tokens / (self.weight + flow.weight)
        flow.counter += tokens / flow.weight
        if flow.counter > self._level:  # a debt; else there is nothing to remember
            self._rest(flow)
        return False

    def _between(self, top: float) -> float:
        return min(max(self._level, top), top + self._largest)

    def _rest(self, flow: Flow) -> None:
        self._idle[flow.name] = flow
        if len(self._idle) > MAX_IDLE_FLOWS:
            self._idle.popitem(last=False)


class Share:
    """What a band is owed of all service, by its share of it.

    It is owed from when somebody waits in it, less what it was given since; where it was given more, nothing is held
    against it. Once that pays for its head, the band goes first; of several such, the one that got nothing for
    longest, so that none starves where more is reserved than there is.
    """

    __slots__ = ("_paid_to", "share", "since")

    def __init__(self, share: float) -> None:
        self.resize(share)
        self._paid_to = 0.0
        """Service given to anybody, up to which it has had its share."""
        self.since = 0.0
        """Service given to anybody when it last got some, or began to wait."""

    def resize(self, share: float) -> None:
        """Be owed so much of all service from now on."""
        self.share = max(share, STARVED_SHARE)

    def begin(self, served: float) -> None:
        """Somebody waits again, when so much service was given to anybody: nothing is owed from before."""
        self._paid_to = self.since = served

    def given(self, tokens: float, served: float) -> None:
        """It got service, with which anybody got so much."""
        self._paid_to = min(self._paid_to + tokens / self.share, served)
        self.since = served

    def due(self, cost: float, served: float, largest: float) -> float:
        """How much service anybody has been given when the band can pay for its head.

        `largest` is the cost of no less than any that waits.
        """
        self._paid_to = max(self._paid_to, served - CREDIT * largest / self.share)
        return self._paid_to + cost / self.share
