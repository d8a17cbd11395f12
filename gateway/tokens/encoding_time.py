"""The time that a text takes to encode, as a bound: compiled code neither looks at its job nor hears a signal."""

import re

PER_BYTE = 1e-6
"""CPU seconds for a character of ASCII: six times those of ordinary text. Measured, as the others."""
_PER_OTHER_BYTE = 1.5e-6
"""The same for a byte of a text with other characters: normalised, one may become eighteen."""
_PER_PAIR_OF_DIGITS = 16e-9
"""The same for the square of a run of digits: tokenizers that group them from the right (Cohere's) look from each to
the last."""
_LONG = 64
"""Digits of a run from which on they matter."""
_RUN = re.compile(r"\d+")
_TWO = re.compile(r"\d\d")


def encoding_seconds(text: str) -> float:
    """CPU seconds that it takes to encode a text. Found in a small part of these, whatever the text."""
    of_all = PER_BYTE * len(text) if text.isascii() else _PER_OTHER_BYTE * len(text.encode(errors="surrogatepass"))
    if not _TWO.search(text[:: _LONG // 2]):  # a long run shows in two of these that follow each other
        return of_all
    return of_all + _PER_PAIR_OF_DIGITS * sum(len(run) ** 2 for run in _RUN.findall(text))
