import json
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pytest
from tokenizers import AddedToken, Tokenizer

from gateway.tokens import render
from gateway.tokens.count import PromptTooLongError
from gateway.tokens.messages import NeedsEngineError
from gateway.tokens.normalise import ChatPrompt, Encoding, TextPrompt, chat_prompt
from gateway.tokens.render import (
    Renderer,
    TokenizerChangedError,
    TokenizerSource,
    TokenizerUnavailableError,
    is_quick,
    loaded_from,
    renderer,
)
from gateway.tokens.tokenizer import Tokens
from gateway.tokens.transformers_tokenizer import TransformersTokenizer
from gateway.wire.request import InvalidRequestError
from tests.clock import Clock

USER = {"role": "user", "content": "the fox"}
TOOL = {"type": "function", "function": {"name": "f"}}
FAR = 10**6


def texts(*prompts: str | list[int], special: bool = True, truncate: int | None = None) -> TextPrompt:
    return TextPrompt(prompts, Encoding(add_special_tokens=special, truncate=truncate))


def count_texts(renderer: Renderer, prompt: TextPrompt, max_model_len: int) -> tuple[int, ...]:
    return tuple(one.tokens for one in renderer.measure_texts(prompt, max_model_len))


def count_chat(renderer: Renderer, prompt: ChatPrompt, max_model_len: int) -> int:
    return renderer.measure_chat(prompt, max_model_len).tokens


@pytest.fixture
def plain(tokenizer_folder: Path) -> Renderer:
    return renderer(TokenizerSource(str(tokenizer_folder)))


def with_template(folder: Path, template: str) -> Renderer:
    return renderer(TokenizerSource(str(folder), chat_template=template))


def test_a_conversation_is_rendered_with_the_tokenizers_own_template(plain: Renderer) -> None:
    text = plain.render(chat_prompt({"messages": [USER]}))
    assert text == "<bos><user>the fox</user><assistant>"
    assert (
        count_chat(plain, chat_prompt({"messages": [USER]}), FAR)
        == count_texts(plain, texts(text, special=False), FAR)[0]
    )


def test_special_tokens_are_added_where_the_request_says_so(plain: Renderer) -> None:
    assert (
        count_texts(plain, texts("the fox"), FAR)[0] == count_texts(plain, texts("the fox", special=False), FAR)[0] + 1
    )
    chat = {"messages": [USER]}
    assert (
        count_chat(plain, chat_prompt(chat | {"add_special_tokens": True}), FAR)
        == count_chat(plain, chat_prompt(chat), FAR) + 1
    )


def test_special_tokens_in_a_text_are_one_token(plain: Renderer) -> None:
    assert count_texts(plain, texts("<bos><bos>", special=False), FAR) == (2,)


def test_prompts_of_token_ids_keep_their_length(plain: Renderer) -> None:
    assert count_texts(plain, texts([5] * 7, "", [1, 2, 3], special=False), FAR) == (7, 0, 3)


def test_variables_a_template_does_not_read_stay_outside(tokenizer_folder: Path) -> None:
    reader = with_template(tokenizer_folder, "{% set a = 1 %}{{ a }}{{ b }}{{ messages | length }}")
    assert reader.render(chat_prompt({"messages": [USER], "chat_template_kwargs": {"a": 5, "b": 6}})) == "161"


def test_a_template_that_knows_developers_sees_them(tokenizer_folder: Path) -> None:
    developer = {"messages": [USER, {"role": "developer", "content": "be kind"}]}
    roles = "{% for m in messages %}{{ m.role }} {% endfor %}"
    assert with_template(tokenizer_folder, roles).render(chat_prompt(developer)) == "system user "
    knowing = roles + "{# 'developer' #}"
    assert with_template(tokenizer_folder, knowing).render(chat_prompt(developer)) == "user developer "


def test_tools_have_a_template_of_their_own_where_there_is_one(tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "named")
    settings = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{% for m in messages %}{% for c in m.content %}part{% endfor %}{% endfor %}"},
    ]
    (tmp_path / "named" / "tokenizer_config.json").write_text(json.dumps(settings))
    named = renderer(TokenizerSource(str(tmp_path / "named")))
    assert named.render(chat_prompt({"messages": [USER]})) == "plain"
    assert named.render(chat_prompt({"messages": [USER], "tools": [TOOL]})) == "part"


def test_a_template_that_refuses_is_the_clients_error_in_its_own_words(tokenizer_folder: Path) -> None:
    refusing = with_template(tokenizer_folder, "{{ raise_exception('Roles must alternate.') }}")
    with pytest.raises(InvalidRequestError, match=r"^Roles must alternate\.$"):
        refusing.render(chat_prompt({"messages": [USER]}))


def test_what_a_template_quotes_of_a_conversation_is_short_and_can_be_written(tokenizer_folder: Path) -> None:
    quoting = with_template(tokenizer_folder, "{{ raise_exception('No role is called ' + messages[0].role) }}")
    for role in ("\ud800", '"' * 2**20):
        with pytest.raises(InvalidRequestError, match=r"^No role is called ") as refused:
            quoting.render(chat_prompt({"messages": [USER | {"role": role}]}))
        assert len(refused.value.message.encode()) <= 4096


def test_a_template_that_fails_otherwise_is_left_to_the_engine(tokenizer_folder: Path) -> None:
    failing = with_template(tokenizer_folder, "{{ 1 / 0 }}")
    with pytest.raises(NeedsEngineError, match="ZeroDivisionError"):
        failing.render(chat_prompt({"messages": [USER]}))


@pytest.mark.parametrize("parameters", [f'{{"a":{"[" * 900 + "]" * 900},"b":0}}', f'{{"a":[{"0," * 300_000}0]}}'])
def test_what_would_become_megabytes_of_blanks_is_refused_unprinted(tokenizer_folder: Path, parameters: str) -> None:
    printing = "{{ messages[0].content }}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}"
    indents = with_template(tokenizer_folder, printing)
    nested = {"type": "function", "function": {"name": "f", "parameters": json.loads(parameters)}}
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        indents.render(chat_prompt({"messages": [USER], "tools": [nested] * 6}))
    few = {"type": "function", "function": {"name": "f", "parameters": {"a": [[[["the fox"]]]]}}}
    assert "the fox" in indents.render(chat_prompt({"messages": [USER], "tools": [few] * 1000}))


def test_a_part_that_is_repeated_for_each_message_is_not_rendered_where_it_can_fit_no_model(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = with_template(tokenizer_folder, "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    asked = {"messages": [USER] * 10_000, "chat_template_kwargs": {"eos_token": "fox " * 100_000}}
    monkeypatch.setattr(ends, "_encode", lambda *_: pytest.fail("it must not be encoded"))
    with pytest.raises(PromptTooLongError) as error:
        ends.measure_chat(chat_prompt(asked), 1000)
    assert 1000 < error.value.at_least < 10**6
    assert count_chat(ends, chat_prompt(asked | {"truncate_prompt_tokens": 5, "max_tokens": 1}), 1000) == 5
    with pytest.raises(PromptTooLongError):
        ends.measure_chat(chat_prompt(asked | {"truncate_prompt_tokens": 1001}), 1000)


def test_a_template_is_compiled_before_the_first_count(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picky = "{% if messages | length < 2 %}{{ raise_exception('Too few.') }}{% endif %}{{ messages[0].content }} once"
    loaded = with_template(tokenizer_folder, picky)
    monkeypatch.setattr(jinja2.Environment, "compile", lambda *_, **__: pytest.fail("it must not be compiled now"))
    assert loaded.render(chat_prompt({"messages": [USER] * 2})) == "the fox once"


def test_what_is_nested_too_deeply_for_a_template_is_refused_without_the_engine(plain: Renderer) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": deep}}}
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        plain.render(chat_prompt({"messages": [USER], "tools": [tool]}))


def test_a_lack_of_memory_is_not_left_to_the_engine(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = with_template(tokenizer_folder, "{{ messages[0].content }}")

    def apply(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(large._tokenizer, "render", apply)
    with pytest.raises(MemoryError):
        large.render(chat_prompt({"messages": [USER]}))


def test_an_empty_conversation_is_left_to_the_engine(plain: Renderer) -> None:
    with pytest.raises(NeedsEngineError):
        plain.render(chat_prompt({"messages": []}))


def test_a_text_that_cannot_fit_by_its_characters_is_not_encoded(
    plain: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "_encode", lambda *_: pytest.fail("encoded"))
    text = "x" * (100 * plain.max_chars_per_token + 1)
    with pytest.raises(PromptTooLongError) as caught:
        count_texts(plain, texts(text), 100)
    assert caught.value.at_least == 101


def test_a_text_that_fits_by_its_characters_is_counted_however_long(plain: Renderer) -> None:
    assert count_texts(plain, texts("x" * (100 * plain.max_chars_per_token), special=False), 100)[0] >= 100


def test_a_long_text_is_refused_by_its_beginning(plain: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    original = plain._encode

    def encode(text: str, *how: bool) -> Tokens:
        encoded.append(len(text))
        return original(text, *how)

    monkeypatch.setattr(plain, "_encode", encode)
    monkeypatch.setattr(plain, "max_chars_per_token", 50)
    text = "q" * 30_000
    with pytest.raises(PromptTooLongError) as caught:
        count_texts(plain, texts(text), 1000)
    assert max(encoded) < len(text) / 2
    assert 1000 < caught.value.at_least <= len(text)


def test_truncation_takes_any_length(plain: Renderer) -> None:
    long = "x" * 10_000
    assert count_texts(plain, texts(long, [1] * 50, "the fox", truncate=20), 100) == (
        20,
        20,
        count_texts(plain, texts("the fox"), FAR)[0],
    )


@pytest.mark.parametrize("truncate", [20, -1, 100])
@pytest.mark.parametrize("text", ["the fox " * 1_000_000, " " * 100_000 + "the fox " * 1_000_000, "x" * 3_000])
def test_truncation_encodes_no_more_than_it_keeps(plain: Renderer, monkeypatch, text: str, truncate: int) -> None:
    encoded: list[int] = []
    original = plain._encode

    def encode(part: str, *how: bool) -> Tokens:
        encoded.append(len(part))
        return original(part, *how)

    monkeypatch.setattr(plain, "_encode", encode)
    assert count_texts(plain, texts(text, truncate=truncate), 100) == (100 if truncate < 0 else truncate,)
    assert sum(encoded) <= 2 * 8 * 101


def test_a_long_text_of_few_tokens_is_for_the_engine(plain: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "max_chars_per_token", 2_000)
    for truncate in (None, 90):
        with pytest.raises(NeedsEngineError):
            count_texts(plain, texts("x" * 5_000, truncate=truncate), 100)


def with_tokens(folder: Path, to: Path, **flags: Sequence[str]) -> Renderer:
    """A tokenizer with these tokens added: contents by flag."""
    shutil.copytree(folder, to)
    made = Tokenizer.from_file(str(to / "tokenizer.json"))
    made.add_tokens([AddedToken(text, **{flag: True}) for flag, texts_of_it in flags.items() for text in texts_of_it])
    made.save(str(to / "tokenizer.json"))
    return renderer(TokenizerSource(str(to)))


def test_blanks_that_a_token_takes_along_make_no_text_too_long(tokenizer_folder: Path, tmp_path: Path) -> None:
    made = with_tokens(tokenizer_folder, tmp_path / "made", rstrip=["<|user|>"])
    made.max_chars_per_token = 60
    assert count_texts(made, texts("<|user|>" + "\n" * 1_500, special=False), 100) == (1,)
    with pytest.raises(NeedsEngineError):
        count_texts(made, texts("<|user|>" + "\n" * 5_000), 100)


def test_a_text_at_which_the_tokenizer_breaks_off_is_for_the_engine(tokenizer_folder: Path, tmp_path: Path) -> None:
    made = with_tokens(tokenizer_folder, tmp_path / "made", lstrip=["\n"], rstrip=["  "])
    with pytest.raises(NeedsEngineError):
        count_texts(made, texts("the  \n    fox"), 100)
    with pytest.raises(NeedsEngineError):
        made.count_text("the  \n    fox")


def test_half_a_surrogate_pair_is_no_prompt(plain: Renderer) -> None:
    with pytest.raises(InvalidRequestError):
        count_texts(plain, texts("\ud83d"), FAR)
    assert count_texts(plain, texts("\U0001f680", special=False), FAR)[0] > 0


def test_a_tokenizer_without_a_template_counts_texts_only(tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    bare = renderer(TokenizerSource(str(tmp_path / "bare")))
    assert count_texts(bare, texts("the fox"), FAR)[0] > 0
    with pytest.raises(NeedsEngineError):
        count_chat(bare, chat_prompt({"messages": [USER]}), FAR)


def test_a_tokenizer_that_is_not_there_is_unavailable_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(TokenizerUnavailableError, match="cannot be loaded"):
        renderer(TokenizerSource(str(tmp_path)))


def test_a_folder_that_is_not_on_this_machine_is_told_as_one_and_no_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.tokens.render.hub_answers", lambda: pytest.fail("asked"))
    with pytest.raises(
        TokenizerUnavailableError, match="there is no folder /models/llama on this machine; give another"
    ):
        renderer(TokenizerSource("/models/llama"))


def test_one_that_cannot_be_loaded_just_now_is_not_said_to_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: TokenizerSource) -> Renderer:
        raise TokenizerUnavailableError("Too many open files", passes=True)

    monkeypatch.setattr(render, "_load", fail)
    with pytest.raises(NeedsEngineError, match="Too many open files") as caught:
        renderer(TokenizerSource("somewhere"), b"files")
    assert not isinstance(caught.value, TokenizerChangedError)


def test_only_for_another_one_that_was_asked_for_by_its_files_the_engine_is_needed(tokenizer_folder: Path) -> None:
    source = TokenizerSource(str(tokenizer_folder))
    assert renderer(source) is renderer(source, loaded_from(source))
    with pytest.raises(TokenizerChangedError):
        renderer(source, b"others")


def test_a_hub_that_is_silent_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("gateway.tokens.hub._TIMEOUT", 0.2)
        start = time.monotonic()
        with pytest.raises(TokenizerUnavailableError, match="the hub is out of reach"):
            renderer(TokenizerSource("nobody/nothing"))
        assert time.monotonic() - start < 10


def test_a_broken_template_makes_the_tokenizer_unavailable(tokenizer_folder: Path) -> None:
    with pytest.raises(TokenizerUnavailableError) as caught:
        with_template(tokenizer_folder, "{% for %}")
    assert isinstance(caught.value.__cause__, jinja2.TemplateSyntaxError)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
        {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"]},
        {"model_type": "kimi_k3", "architectures": ["KimiK3ForConditionalGeneration"]},
    ],
)
def test_models_whose_prompts_the_engine_builds_itself_are_left_to_it(
    tokenizer_folder: Path, tmp_path: Path, config: dict[str, object]
) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "own")
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerUnavailableError, match="code of its own"):
        renderer(TokenizerSource(str(tmp_path / "own")))


def test_mistrals_own_tokenizer_is_left_to_the_engine(tokenizer_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tokenizer_folder, tmp_path / "mistral")
    for name in ("tekken.json", "params.json"):
        (tmp_path / "mistral" / name).write_text("{}")
    with pytest.raises(TokenizerUnavailableError, match="Mistral"):
        renderer(TokenizerSource(str(tmp_path / "mistral")))


def test_a_tokenizer_that_encodes_in_its_own_way_is_asked_as_a_whole(tokenizer_folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    class Doubling(PreTrainedTokenizerFast):
        def _encode_plus(self, text: str, **kwargs: object) -> object:
            return super()._encode_plus(text + text, **kwargs)

    single = renderer(TokenizerSource(str(tokenizer_folder)))
    doubled = Renderer(TransformersTokenizer(Doubling.from_pretrained(tokenizer_folder)))
    assert single.quick
    assert not doubled.quick
    assert (
        count_texts(doubled, texts("fox", special=False), FAR)[0]
        == count_texts(single, texts("foxfox", special=False), FAR)[0]
    )


def test_one_that_takes_long_to_load_keeps_nobody_from_another(monkeypatch):
    go = threading.Event()
    began = threading.Event()
    loads = []

    def load(source):
        loads.append(source.name)
        if source.name == "slow":
            began.set()
            assert go.wait(120)
        return SimpleNamespace(name=source.name, files=b"")

    monkeypatch.setattr(render, "_load", load)
    monkeypatch.setattr(render, "_LOADED", {})
    threads = [threading.Thread(target=renderer, args=(TokenizerSource("slow"),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(120)
    assert renderer(TokenizerSource("other")).name == "other"
    go.set()
    for thread in threads:
        thread.join()
    assert loads == ["slow", "other"]


def test_of_too_many_those_go_that_nobody_uses(monkeypatch):
    clock, loads = Clock(0.0), []

    def load(source):
        loads.append(source)
        return SimpleNamespace(quick=True, files=b"")

    monkeypatch.setattr(render, "_load", load)
    monkeypatch.setattr(render, "_LOADED", {})
    monkeypatch.setattr(render, "_USED_AT", {})
    monkeypatch.setattr(render, "time", SimpleNamespace(monotonic=clock))
    sources = [TokenizerSource(str(number)) for number in range(render._MOST_LOADED + 1)]
    for source in [*sources, *sources]:
        renderer(source)
    assert loads == sources, "those in turn use are not loaded again and again"
    clock.now += 1
    renderer(sources[0])
    clock.now += render._IN_USE - 0.5
    renderer(TokenizerSource("new"))
    assert [source for source in sources if not is_quick(source)] == sources[1:3]


def test_two_that_are_the_first_are_loaded_at_once(tokenizer_folder: Path, tmp_path: Path) -> None:
    """The first import of transformers fails in one of two threads that do it at the same time."""
    folders = [shutil.copytree(tokenizer_folder, tmp_path / name) for name in ("one", "two", "three")]
    code = """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from gateway.tokens.render import TokenizerSource, renderer

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(renderer, map(TokenizerSource, sys.argv[1:])))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, folders)],
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_conversation_that_comes_back_longer_is_encoded_from_where_it_grew(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = with_template(tokenizer_folder, "{% for m in messages %}<bos>{{ m.content }}{% endfor %}")
    assert renderer._pieces is not None
    texts: list[str] = []
    original = renderer._pieces._encode

    def encode(new: list[str]) -> Iterable[Sequence[int]]:
        texts.extend(new)
        return original(new)

    monkeypatch.setattr(renderer._pieces, "_encode", encode)
    turns = [{"role": "user", "content": f"{number} the quick fox " * 60} for number in range(6)]
    for length in (3, 4, 6):
        prompt = chat_prompt({"messages": turns[:length]})
        measured = renderer.measure_chat(prompt, FAR)
        assert measured.encoded is not None
        whole = renderer._encode(renderer.render(prompt), False)
        assert list(measured.encoded.ids) == list(whole.ids)
    assert [text[5:6] for text in texts] == ["0", "1", "2", "3", "4", "5"]


def test_with_special_tokens_around_it_a_prompt_is_encoded_as_a_whole(tokenizer_folder: Path) -> None:
    renderer = with_template(tokenizer_folder, "{% for m in messages %}<bos>{{ m.content }}{% endfor %}")
    chat = {"messages": [{"role": "user", "content": "the fox " * 500}]}
    assert count_chat(renderer, chat_prompt(chat | {"add_special_tokens": True}), FAR) == (
        count_chat(renderer, chat_prompt(chat), FAR) + 1
    )
