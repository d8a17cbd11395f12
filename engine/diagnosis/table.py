"""PURE. The table of all signs, each theme's most telling first, and its rendering for the documentation."""

import re

from engine.diagnosis.sign import Kind, Sign
from engine.diagnosis.signs import (
    answers,
    arguments,
    client,
    death,
    installation,
    llama_server,
    memory,
    model_files,
    network,
    parallel,
    service_log,
    tokenizers,
)

SIGNS: tuple[Sign, ...] = (
    *arguments.SIGNS,
    *installation.SIGNS,
    *memory.SIGNS,
    *model_files.SIGNS,
    *tokenizers.SIGNS,
    *answers.SIGNS,
    *parallel.SIGNS,
    *network.SIGNS,
    *client.SIGNS,
    *llama_server.SIGNS,
    *death.SIGNS,
    *service_log.SIGNS,
)

_SYNTAX = re.compile(r"\(\?P<\w+>|\(\?[:!]|\\[dwsSb]|\.(?=[*{])|(?<!\\)[()|?*+^$\[\]{}]")
"""The parts of a pattern that are not text."""
_WORDS = 8
"""Fewest characters of a meaningful piece of text."""


def markdown() -> str:
    """Every sign by theme, as `kvgate doctor --table` prints it: name, log text, cause, remedy."""
    lines: list[str] = []
    for kind in Kind:
        signs = [sign for sign in SIGNS if sign.kind is kind]
        if signs:
            lines += [f"### {kind.value[0].upper()}{kind.value[1:]}", ""]
            lines += ["| sign | the log says | cause | way out |", "|---|---|---|---|"]
            lines += [
                f"| {sign.name} | `{words(sign)}` | {_cell(sign.cause)} | {_cell(sign.remedy)} |" for sign in signs
            ]
            lines.append("")
    return "\n".join(lines)


def words(sign: Sign) -> str:
    """The first words of a sign's pattern, or its example."""
    if sign.example:
        return sign.example.replace("|", "\\|")
    pieces = [re.sub(r"\\(.)", r"\1", piece).strip(" `'.") for piece in _SYNTAX.split(sign.pattern)]
    return next((piece for piece in pieces if len(piece) >= _WORDS), max(pieces, key=len)).replace("`", "'")


def _cell(text: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: "" if match[1] in _CLAUSES else match[1].upper(), text).replace(
        "|", "\\|"
    )


_CLAUSES = {"sizes", "figures", "crumbs", "other", "only_path", "old_own"}
"""Facts that form a clause of their own, or repeat the one before in an older form."""
