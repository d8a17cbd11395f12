"""What `POST /kvgate/explain` answers, and who makes it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gateway.admission.explain import Explanation
from gateway.wire.errors import ErrorAnswer
from gateway.wire.request import Api


class Explained(BaseModel):
    """What would become of a request that arrived now."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(description="Whose pool it would go to.")
    api: Api
    flow: str = Field(description="Whose request it would be.")
    band: int = Field(description="Its priority band; lower goes first.")
    counted: str = Field(description="Who counted its prompt: `local`, `engine`, or `estimate`.")
    prompt_tokens: int = Field(description="Over all of its prompts.")
    max_tokens: int = Field(description="The most that each of its sequences may generate.")
    sequences: int
    decision: Explanation = Field(description="What the core would do with it, and by which rule.")


class Explainer(Protocol):
    """Answers the route; the composition root brings it."""

    async def explain(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        *,
        api: Api | None,
        flow: str | None,
    ) -> Explained | ErrorAnswer:
        """What would become of the request whose body and headers these are.

        Args:
            scope: of the question.
            receive: brings its body.
            api: whose request it is; told from the body where it is None.
            flow: whose it would be; the asking address's where it is None.
        """
        ...
