"""PURE. Every sign that is known, the more telling of one theme first; and what they come to in a line."""

from engine.diagnosis import arguments, death, memory, model_files, network, parallel, service_log, tokenizers
from engine.diagnosis.sign import Sign

SIGNS: tuple[Sign, ...] = (
    *arguments.SIGNS,
    *memory.SIGNS,
    *model_files.SIGNS,
    *tokenizers.SIGNS,
    *parallel.SIGNS,
    *network.SIGNS,
    *death.SIGNS,
    *service_log.SIGNS,
)
