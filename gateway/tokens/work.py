"""The questions that count a request, by the kind of engine. A kind that is not here has no counting route."""

import json
from collections.abc import Callable
from dataclasses import replace

from gateway.tokens.engine_work import CountedIn, EngineCall, EngineWork, engine_work
from gateway.tokens.estimate import brings_media
from gateway.tokens.features import Kind, features
from gateway.tokens.fields import prompt_fields
from gateway.tokens.length_bound import fitting
from gateway.tokens.llama_server import llama_server_work
from gateway.tokens.messages import NeedsEngineError, NotCountableError
from gateway.tokens.normalise import Encoding, text_prompt
from gateway.wire.engine_kinds import LLAMA_SERVER, SGLANG, TGI, VLLM
from gateway.wire.request import Api

_PLAIN = Encoding(add_special_tokens=True)


def sglang_work(api: Api, body: bytes, max_model_len: int) -> EngineWork:
    """As vLLM's, but its `/tokenize` takes a conversation as chat does, and lists the tokens before it says how many.

    Older ones take no conversation there: they refuse it. Of an image or a recording it shows one token. Raises as
    `engine_work`, and NotCountableError for media.
    """
    fields = fitting(api, body, max_model_len)
    if brings_media(fields.get("messages")) or brings_media(fields.get("input")):
        raise NotCountableError("SGLang counts no media")
    if api is Api.CHAT:
        asked = {name: fields[name] for name in ("model", *prompt_fields(SGLANG.name, api)) if name in fields}
        return EngineWork((_listing(json.dumps(asked).encode()),), _PLAIN, Kind(api))
    work = engine_work(api, body, max_model_len, kinds=frozenset({SGLANG.name}))

    def listing(prompt: EngineCall | int) -> EngineCall | int:
        return prompt if isinstance(prompt, int) or prompt.path != "/tokenize" else _listing(prompt.body)

    return replace(work, prompts=tuple(map(listing, work.prompts)))


def _listing(body: bytes) -> EngineCall:
    return EngineCall("/tokenize", body, counted_in=CountedIn.TOKENS)


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
