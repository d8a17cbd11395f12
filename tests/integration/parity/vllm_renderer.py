"""Run by the engine's interpreter: requests, a line each, as the token ids that vLLM's own renderer makes of them.

Arguments: a model's folder, its length in tokens, and a JSON file of templates by name. No engine starts. What is
refused is null.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from vllm.config import (  # type: ignore[import-not-found, unused-ignore]
    DeviceConfig,
    ModelConfig,
    VllmConfig,
)
from vllm.entrypoints.anthropic.protocol import (  # type: ignore[import-not-found, unused-ignore]
    AnthropicMessagesRequest,
)
from vllm.entrypoints.anthropic.serving import (  # type: ignore[import-not-found, unused-ignore]
    AnthropicServingMessages,
)
from vllm.entrypoints.openai.chat_completion.protocol import (  # type: ignore[import-not-found, unused-ignore]
    ChatCompletionRequest,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # type: ignore[import-not-found, unused-ignore]
from vllm.entrypoints.serve.engine.protocol import ErrorResponse  # type: ignore[import-not-found, unused-ignore]
from vllm.renderers import renderer_from_config  # type: ignore[import-not-found, unused-ignore]
from vllm.renderers.online_renderer import OnlineRenderer  # type: ignore[import-not-found, unused-ignore]


async def rendered(renderer: Any, api: str, body: Any) -> list[int] | None:
    """The ids of a request's prompt; None for a refusal. Raises what the models and templates refuse by."""
    if api == "responses":
        result = await renderer.render_responses(ResponsesRequest.model_validate(body))
    elif api == "messages":
        request = AnthropicMessagesRequest.model_validate(body)
        result = await renderer.render_chat(AnthropicServingMessages.to_chat_completion_request(request))
    else:
        result = await renderer.render_chat(ChatCompletionRequest.model_validate(body))
    if isinstance(result, ErrorResponse):
        return None
    prompt = result.engine_input if api == "responses" else result[1][0]
    return list(prompt["prompt_token_ids"])


async def main(folder: str, max_model_len: int, templates: dict[str, str]) -> None:
    logging.disable(logging.CRITICAL)
    model = ModelConfig(model=folder, max_model_len=max_model_len, dtype="float32")
    own = renderer_from_config(VllmConfig(model_config=model, device_config=DeviceConfig("cpu")))
    renderers = {
        name: OnlineRenderer(
            model,
            own,
            request_logger=None,
            chat_template=template,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        for name, template in templates.items()
    }
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            ids = await rendered(renderers[asked["template"]], asked["api"], asked["body"])
        except Exception:  # noqa: BLE001  # whatever it raises, it refuses
            ids = None
        print(f"= {json.dumps(ids)}", flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())))
