"""The questions that count a request, by the kind of engine. A kind that is not here has no counting route."""

import json
from collections.abc import Callable
from dataclasses import replace

from gateway.tokens.features import Kind, features
from gateway.tokens.llama_server import llama_server_work
from gateway.tokens.local_count import CountedIn, EngineCall, EngineWork, engine_work, fitting
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.normalise import Encoding, text_prompt
from gateway.wire.engine_kinds import LLAMA_SERVER, SGLANG, TGI, VLLM
from gateway.wire.request import Api

_PLAIN = Encoding(add_special_tokens=True)


def sglang_work(api: Api, body: bytes, max_model_len: int) -> EngineWork:
    """As vLLM's, but its `/tokenize` lists the tokens before it says how many there are.

    Older ones take no conversation there: they refuse it. Raises as `engine_work`.
    """
    work = engine_work(api, body, max_model_len)

    def listing(prompt: EngineCall | int) -> EngineCall | int:
        if isinstance(prompt, int) or prompt.path != "/tokenize":
            return prompt
        return replace(prompt, counted_in=CountedIn.TOKENS)

    return replace(work, prompts=tuple(map(listing, work.prompts)))


def tgi_work(api: Api, body: bytes, max_model_len: int) -> EngineWork:
    """TGI's: a conversation is counted from its own body.

    Raises:
        NeedsEngineError: no counting route takes such a request.
        InvalidRequestError: it has no prompt, or is nested too deeply.
        PromptTooLongError: it cannot fit.
    """
    fields = fitting(api, body, max_model_len)
    if api is Api.CHAT:
        return EngineWork((EngineCall("/chat_tokenize", body, counted_in=CountedIn.ENTRIES),), _PLAIN, Kind(api))
    if api is not Api.COMPLETIONS:
        raise NeedsEngineError(f"TGI has no route that counts {api.value}")
    texts = text_prompt({"prompt": fields.get("prompt")})
    prompts = tuple(
        len(prompt)
        if isinstance(prompt, list)
        else EngineCall("/tokenize", json.dumps({"inputs": prompt}).encode(), counted_in=CountedIn.ENTRIES)
        for prompt in texts.prompts
    )
    return EngineWork(prompts, _PLAIN, Kind(api, features(texts)))


WORK: dict[str, Callable[..., EngineWork]] = {
    VLLM.name: engine_work,
    LLAMA_SERVER.name: llama_server_work,
    SGLANG.name: sglang_work,
    TGI.name: tgi_work,
}
