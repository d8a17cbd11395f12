"""Client text made fit to show in an error or a log line: short, on one line, harmless to a terminal."""

LONGEST = 128
"""Characters."""


def shown(value: str | int) -> str:
    """A client's name or number, which may be absurd, as text to show."""
    if isinstance(value, int):
        return str(value) if -(10**18) < value < 10**18 else "a number out of all range"
    if len(value) <= LONGEST and value.isprintable():
        return value
    return "".join(character if character.isprintable() else "\ufffd" for character in value[:LONGEST])
