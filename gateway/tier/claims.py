"""The claim of a gateway towards another, built from its settings."""

import json
from collections.abc import Mapping

from gateway.config.settings import Settings
from gateway.tier.frames import OLDEST, VERSION
from gateway.tier.seal import Claim, Role, SharedKey


def claim(role: Role, key: SharedKey, settings: Settings, templates: Mapping[str | None, str | None]) -> Claim:
    """The claim of a gateway of a tier. Secrets count as equal: each gateway may have keys of its own.

    So do the queue's bytes, of which a front has a part.

    Args:
        role: which half of it speaks.
        key: of the tier.
        settings: those in force.
        templates: texts of the chat templates, by the models' settings: files of one name may differ.
    """
    decides = settings.model_dump_json(
        include={"admission", "models", "health"},
        exclude={"admission": {"queue": {"max_bytes"}}, "models": {"__all__": {"chat_template"}}},
    )
    texts = [[model.name, templates[model.chat_template]] for model in settings.models]
    return Claim(
        role,
        settings.tier.advertise or "",
        (OLDEST, VERSION),
        key.digest(decides.encode()),
        key.digest(json.dumps(sorted(texts, key=str)).encode()),
    )
