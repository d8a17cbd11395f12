"""An incident, recorded, and its pictures."""

import gzip

import msgspec

from gateway.admission.events import (
    Arrived,
    Capacity,
    Demand,
    EndpointDown,
    EndpointUp,
    Finished,
    Observed,
    Progress,
    Tick,
    Verdict,
)
from gateway.ops.pictures.picture import Picture
from tests.unit.record.recorded import Tape

UP = EndpointUp("e", Capacity(1000, 100, max_num_seqs=1))
LOOSE = {"ttft_target": None}


def arrived(number, **fields):
    return Arrived(number, Demand((160,), 100), **fields)


def shown(made, side=0):
    return [msgspec.json.decode(gzip.decompress(each), type=Picture) for each in made.pictures[side]]


class Incident(Tape):
    """Times begin at 100. One runs for ten seconds; a second finds no place in the queue."""

    def __init__(self):
        super().__init__(**LOOSE, queue={"max_requests": 0})
        self.seen = []
        """After each second, the core's own snapshot."""

    def play(self):
        told = {
            100: [UP], 101: [arrived(1, flow="app")], 103: [Progress(((1, 1),))],
            104: [Observed("e", 104.0, 0.5, 1, 0, 50.0, 2.0)], 105: [arrived(2, flow="late")],
            106: [Observed("e", 106.0, 0.5, 1, 0, 90.0, 5.0)], 111: [Finished(1, Verdict.DONE, 10)],
            113: [EndpointDown("e", "hung: no answer for 9 s")], 130: [Tick()],
        }  # fmt: skip
        for at in range(100, 131):
            self.tell(at, *told.get(at, ()))
            self.seen.append(self.controller.snapshot(at))
        return self
