"""An admission and the driver of its core, as in a process that has both."""

from collections.abc import Callable, Sequence

from gateway.admission.commands import Command
from gateway.admission.controller import AdmissionController
from gateway.admission.events import Event
from gateway.admission.limits.tenants import Tenants
from gateway.pools.admission import Admission, Progressed
from gateway.pools.driver import Driver


def paired(
    controller: AdmissionController,
    clock: Callable[[], float],
    progressed: Progressed = lambda _: None,
    record: Callable[[Event, float, Sequence[Command]], None] | None = None,
    tenants: Tenants | None = None,
) -> tuple[Admission, Driver]:
    """Each knows the other."""
    admission = Admission(progressed)
    admission.decider = driver = Driver(controller, clock, admission, record, tenants=tenants)
    return admission, driver
