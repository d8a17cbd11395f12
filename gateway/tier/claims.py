"""The claim of a gateway towards another, built from its settings."""

from gateway.config.settings import Settings
from gateway.tier.frames import VERSION
from gateway.tier.seal import Claim, Role, SharedKey


def claim(role: Role, key: SharedKey, settings: Settings) -> Claim:
    """The claim of a gateway of a tier. Secrets count as equal: each gateway may have keys of its own."""
    decides = settings.model_dump_json(include={"admission", "models", "health"})
    templates = sorted(str(model.chat_template) for model in settings.models)
    return Claim(
        role,
        settings.tier.advertise or "",
        (VERSION, VERSION),
        key.digest(decides.encode()),
        key.digest("\n".join(templates).encode()),
    )
