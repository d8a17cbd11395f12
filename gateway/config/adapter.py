"""The settings of LoRA adapters."""

from pydantic import Field

from gateway.config.fields import Section


class AdapterSettings(Section):
    """A LoRA adapter of a model. Clients ask for it by its name."""

    name: str = Field(
        pattern=r"^[^\s=,{}]{1,200}$", description="The name by which clients ask for it.", examples=["sql"]
    )
    path: str = Field(min_length=1, description="Its folder, as the engine finds it.", examples=["/models/sql-lora"])
