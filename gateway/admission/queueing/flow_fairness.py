"""Fair shares of service between a band's flows; `lane.py` picks by them. `band_share.py` has those of the bands."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain

from gateway.admission.placing.request import RequestRecord

MAX_IDLE_FLOWS = 4096
"""Most idle flows of a band whose service is remembered: those that left last."""


class Flow:
    """One flow of one band: its counter and its backlog. Costs are tokens of service."""

    __slots__ = ("backlog", "bytes", "counter", "largest", "name", "waiting", "weight")

    def __init__(self, name: str, weight: float, counter: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = counter
        """Virtual time of the flow: service given, divided by its weight. The least goes first."""
        self.backlog = 0.0
        """Cost of its waiting requests."""
        self.largest = 0.0
        """Upper bound of the cost of its waiting requests."""
        self.waiting = 0
        self.bytes = 0
        """Of the bodies of its waiting requests."""


class Fairness:
    """Weighted fair sharing between the flows of a band: the virtual token counter (VTC, arXiv 2401.00588).

    Flows that always wait get service by their weights, to within about the cost of one request each. A flow that
    returns from idling starts at the virtual time of the band. Virtual time advances with all service, divided by the
    weight of the flows that wait: as a perfect split would advance each of them. So an endless row of new flows cannot
    hold up one that waits. Virtual time is kept near the counters of the flows that go next. A flow loses service that
    it did not use, and keeps as a debt service that it used beyond its share.
    """

    __slots__ = ("_idle", "_largest", "_virtual_time", "_weights", "active", "one_each", "several", "weight")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._virtual_time = 0.0
        self.weight = 0.0
        """Weight of all active flows."""
        self.one_each = 0.0
        """Sum of `largest` over all active flows."""
        self._largest = 0.0
        """Upper bound of cost / weight over all waiting requests."""
        self._idle: OrderedDict[str, Flow] = OrderedDict()
        self.active: dict[str, Flow] = {}
        """Flows with a waiting request."""
        self.several: dict[str, Flow] = {}
        """Flows with more than one."""

    def govern(self, weights: Mapping[str, float]) -> None:
        """Apply other weights. The counters stay."""
        self._weights = weights
        for flow in (*self.active.values(), *self._idle.values()):
            flow.weight = weights.get(flow.name, 1.0)
        waiting = self.active.values()
        self.weight = sum([flow.weight for flow in waiting], 0.0)
        self._largest = max([flow.largest / flow.weight for flow in waiting], default=0.0)

    def join(self, request: RequestRecord, least: float | None, top: float | None) -> Flow:
        """Add a waiting request. `least` and `top` as for `start`; used only if its flow was idle."""
        name = request.arrival.flow
        flow = self.active.get(name)
        if flow is None:
            if top is not None:
                self._virtual_time = self._between(top)
            counter = self.start(name, least, top)
            flow = self._idle.pop(name, None) or Flow(name, self._weights.get(name, 1.0), counter)
            flow.counter = counter
            self.active[name] = flow
            self.weight += flow.weight
        flow.waiting += 1
        flow.bytes += request.arrival.body_bytes
        if flow.waiting == 2:  # noqa: PLR2004 - more than one
            self.several[name] = flow
        cost = request.cost
        flow.backlog += cost
        if cost > flow.largest:
            self.one_each += cost - flow.largest
            flow.largest = cost
            self._largest = max(self._largest, cost / flow.weight)
        return flow

    def leave(self, request: RequestRecord) -> None:
        """Take out a waiting request."""
        name = request.arrival.flow
        flow = self.active[name]
        flow.waiting -= 1
        flow.bytes -= request.arrival.body_bytes
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
        """The counter with which an idle flow would begin to wait.

        `least` is the counter at the head of its lane, `top` the highest counter at the head of any lane; None if no
        request waits there.
        """
        virtual_time = self._virtual_time if top is None else self._between(top)
        if least is not None:
            virtual_time = min(virtual_time, least + self._largest)
        flow = self._idle.get(name)
        return virtual_time if flow is None else max(flow.counter, virtual_time)

    def charge(self, name: str, tokens: float) -> bool:
        """Charge a flow for service, or refund it (negative `tokens`). True if it waits and moves forward.

        A refund moves a flow at most one request ahead of the others: charges from times without competition must not
        become a credit.
        """
        flow = self.active.get(name)
        if flow is not None:
            self._virtual_time += tokens / self.weight
            before = flow.counter
            flow.counter = before + tokens / flow.weight
            if tokens >= 0:
                return False
            flow.counter = max(flow.counter, min(before, self._virtual_time - self._largest))
            return flow.counter < before
        flow = self._idle.pop(name, None)
        if flow is None:
            flow = Flow(name, self._weights.get(name, 1.0), self._virtual_time)
        self._virtual_time += tokens / (self.weight + flow.weight)
        flow.counter += tokens / flow.weight
        if flow.counter > self._virtual_time:  # a debt; otherwise there is nothing to remember
            self._rest(flow)
        return False

    def debts(self) -> Iterator[tuple[str, float]]:
        """Of each flow that is ahead of the others: how far. Others are as far as any that begins to wait."""
        least = min((flow.counter for flow in self.active.values()), default=self._virtual_time)
        for flow in chain(self.active.values(), self._idle.values()):
            if flow.counter > least:
                yield flow.name, flow.counter - least

    def recall(self, name: str, debt: float) -> None:
        """Let a flow that is not known yet be so far ahead of the others."""
        if name not in self.active and name not in self._idle:
            self._rest(Flow(name, self._weights.get(name, 1.0), self._virtual_time + debt))

    def _between(self, top: float) -> float:
        return min(max(self._virtual_time, top), top + self._largest)

    def _rest(self, flow: Flow) -> None:
        self._idle[flow.name] = flow
        if len(self._idle) > MAX_IDLE_FLOWS:
            self._idle.popitem(last=False)
