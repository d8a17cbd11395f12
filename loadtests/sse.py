"""The incremental reader of server-sent events."""


class EventReader:
    """Turns bytes, in any chunks, into the data of events.

    Comments and fields other than `data` are dropped. Lines may end in LF or CR LF.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take arrived bytes and return the data of every event that is now complete."""
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
        """Whether an event has begun but not ended."""
        return bool(self._rest.strip())
