"""Incremental reading of server-sent events."""


class EventReader:
    """Cuts bytes, however they arrive, into the data of events.

    Comments and fields other than `data` are dropped. Lines may end in LF or CR LF.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and give back the data of every event that is now complete."""
        text = self._rest + data
        if b"\r" in text:
            held = b"\r" if text.endswith(b"\r") else b""
            text = text.removesuffix(b"\r").replace(b"\r\n", b"\n") + held
        *events, self._rest = text.split(b"\n\n")
        payloads = []
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                payloads.append(b"\n".join(lines))
        return payloads

    @property
    def torn(self) -> bool:
        """Part of an event is here and its end is not."""
        return bool(self._rest.strip())
