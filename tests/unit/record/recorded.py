"""Records made by hand: a core is told what a test says, and a file holds it."""

from gateway.admission.controller import AdmissionController
from gateway.admission.events import PolicyChanged
from gateway.config.admission import AdmissionSettings
from gateway.record.lines import Changed, Opened, Started, encode, happened

SHARES = {"held": 0.2}
"""Of the KV cache, by flow."""


def started(**admission):
    settings = AdmissionSettings.model_validate(admission)
    return Started("0.0", settings.model_dump(mode="json", exclude={"event_log"}), {"heavy": 2.0}, 0.5, SHARES)


def changed(weights, **admission):
    """The line of a change, and what the cores are told."""
    settings = AdmissionSettings.model_validate(admission)
    line = Changed(settings.model_dump(mode="json", exclude={"event_log"}), weights, SHARES)
    return line, PolicyChanged(settings.to_policy(weights=weights, kv_shares=SHARES, poll_interval=0.5))


class Tape:
    """One core, and the lines of what it was told."""

    def __init__(self, **admission):
        self.start = started(**admission)
        settings = AdmissionSettings.model_validate(admission)
        self.controller = AdmissionController(
            settings.to_policy(weights={"heavy": 2.0}, kv_shares=SHARES, poll_interval=0.5)
        )
        self.lines = [encode(self.start), encode(Opened(1, "m"))]

    def tell(self, at, *events):
        for event in events:
            self.lines.append(encode(happened(at, 1, event, self.controller.handle(event, at))))
        return self

    def change(self, at, weights, **admission):
        line, event = changed(weights, **admission)
        self.lines.append(encode(line))
        return self.tell(at, event)

    def write(self, file):
        file.write_bytes(b"".join(self.lines))
        return file
