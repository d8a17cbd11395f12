"""The answer to `POST /kvgate/explain`, and the port of its maker."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gateway.admission.explanation import Explanation
from gateway.wire.errors import ErrorAnswer
from gateway.wire.request import Api


class Explained(BaseModel):
    """The fate of a request if it arrived now."""

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
    """Answers the route; the composition root passes one in."""

    async def explain(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        *,
        api: Api | None,
        flow: str | None,
    ) -> Explained | ErrorAnswer:
        """Say what would become of a request with this body and these headers.

        Args:
            scope: of the question.
            receive: delivers its body.
            api: of the request; None means that the body tells it.
            flow: of the request; None means that of who asks.
        """
        ...
