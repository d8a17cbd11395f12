"""The questions to a llama-server that count a request. Its counting routes take the body of the request itself."""

import json

from gateway.tokens.engine_work import CountedIn, EngineCall, EngineWork
from gateway.tokens.features import Kind, features
from gateway.tokens.length_bound import fitting
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.normalise import Encoding, text_prompt
from gateway.wire.request import Api

_ROUTES = {
    Api.CHAT: "/v1/chat/completions/input_tokens",
    Api.MESSAGES: "/v1/messages/count_tokens",
    Api.RESPONSES: "/v1/responses/input_tokens",
}
_PLAIN = Encoding(add_special_tokens=True)
_SPECIAL = {"add_special": True, "parse_special": True}
"""As its `/v1/completions` reads a prompt (measured, builds of November 2026)."""


def llama_server_work(api: Api, body: bytes, max_model_len: int) -> EngineWork:
    """The questions that count a request.

    Args:
        api: of the request.
        body: its bytes.
        max_model_len: in tokens. What cannot fit is not asked.

    Raises:
        NeedsEngineError: no counting route takes such a request.
        InvalidRequestError: it has no prompt, or is nested too deeply.
        PromptTooLongError: it cannot fit.
    """
    fields = fitting(api, body, max_model_len)
    route = _ROUTES.get(api)
    if route is not None:
        return EngineWork((EngineCall(route, body),), _PLAIN, Kind(api))
    if api is not Api.COMPLETIONS:
        raise NeedsEngineError(f"llama-server has no route that counts {api.value}")
    texts = text_prompt({"prompt": fields.get("prompt")})  # it reads no option of its encoding, whatever that is
    prompts = tuple(
        len(prompt)
        if isinstance(prompt, list)
        else EngineCall("/tokenize", json.dumps({"content": prompt} | _SPECIAL).encode(), counted_in=CountedIn.TOKENS)
        for prompt in texts.prompts
    )
    return EngineWork(prompts, _PLAIN, Kind(api, features(texts)))
