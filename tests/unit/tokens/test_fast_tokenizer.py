import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from gateway.tokens import fast_tokenizer
from gateway.tokens.fast_tokenizer import AS_FILED, CLASSES, FastTokenizer, UnlikeError
from gateway.tokens.template import ChatTemplate
from gateway.tokens.transformers_tokenizer import TransformersTokenizer

TEXTS = (
    "", " ", "  \n\n\t x", "The quick brown fox's 12345 lazy dogs.", "<|im_start|>user\n the fox<|im_end|>\n",
    "<bos><eos><pad><unk><mask> the", "<extra><extra>x <strip>  y", "\r\n\r\n a\u00a0b", "x" * 300,
    "Gr\u00fc\u00dfe, \u4e16\u754c! \U0001f469\u200d\U0001f680 na\u0308ive e\u0301",
    "don't WE'LL I'm 3.14159 x_y-z /* c */ {\"a\": [1, 2]}", "\u0915\u094d\u0937 \u0e01\u0e33 \u202e rtl",
)  # fmt: skip
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra>"]
OF_GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog 0123456789 don't we'll " * 20,
    "Gr\u00fc\u00dfe \u4e16\u754c na\u00efve",
]


def trained(*, levels: bool, special: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A small vocabulary and its merges."""
    tokenizer = Tokenizer(BPE())
    split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = split if levels else pre_tokenizers.Split(" ", "merged_with_previous")
    if not levels:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        special = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if levels else []
    tokenizer.train_from_iterator(
        CORPUS, BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def generic() -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, BpeTrainer(vocab_size=400, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens([AddedToken("<strip>", lstrip=True, rstrip=True), AddedToken("fox", single_word=True)])
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", extra_special_tokens=["<extra>"]
    )


def qwen(kind: Callable[..., Any]) -> Any:
    vocab, merges = trained(levels=True, special=[])
    made = kind(vocab=vocab, merges=merges, unk_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_tokens([AddedToken(mark, special=True) for mark in MARKS])
    made.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return made


def qwen2() -> Any:
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    return qwen(Qwen2Tokenizer)


def qwen3_5() -> Any:
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    return qwen(Qwen3_5Tokenizer)


def gemma() -> Any:
    from transformers.models.gemma.tokenization_gemma import GemmaTokenizer

    vocab, merges = trained(levels=False, special=OF_GEMMA)
    return GemmaTokenizer(vocab=vocab, merges=merges)


MADE: dict[str, tuple[str, Callable[[], Any]]] = {
    "llama": ("llama", generic),
    "mistral": ("mistral", generic),
    "unheard of": ("new", generic),
    "qwen2": ("qwen2", qwen2),
    "qwen3": ("qwen3_moe", qwen2),
    "qwen3.5": ("qwen3_5", qwen3_5),
    "gemma": ("gemma3_text", gemma),
}


def saved(folder: Path, model_type: str, tokenizer: Any, **more: Any) -> Path:
    """A model's folder, as transformers 5 writes it."""
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "transformers_version": "4.57.0"}))
    change(
        folder, chat_template="{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}", **more
    )
    return folder


def change(folder: Path, **fields: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def as_of_4(folder: Path) -> None:
    """As transformers 4 writes it: with all added tokens in the configuration, and a file that it reads no more."""
    filed = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    tokens = {str(token.pop("id")): token for token in filed}
    change(folder, added_tokens_decoder=tokens, add_bos_token=False, clean_up_tokenization_spaces=False)
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<else>"}')


@pytest.fixture(params=MADE)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    model_type, make = MADE[request.param]
    return saved(tmp_path / "model", model_type, make())


def assert_alike(folder: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = FastTokenizer(folder), TransformersTokenizer(AutoTokenizer.from_pretrained(folder))
    assert (ours.longest, set(ours.special_tokens)) == (theirs.longest, set(theirs.special_tokens))
    assert (ours.backend is None) == (theirs.backend is None)
    for text in TEXTS:
        for special in (True, False):
            assert list(ours.encode(text, special=special).ids) == list(theirs.encode(text, special=special).ids), text
    names = "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "mask_token", "image_token"
    shown = ChatTemplate("|".join(f"{{{{ {name} }}}}" for name in names))
    message = {"role": "user", "content": "x"}
    assert ours.render(shown, [message], None, {}) == theirs.render(shown, [message], None, {})
    for given in (None, "{{ x }}", "default", "tool_use"):
        for tools in (True, False):
            assert ours.template(given, tools=tools) == theirs.template(given, tools=tools)


@pytest.mark.parametrize("version", [5, 4])
def test_what_is_loaded_is_what_transformers_loads(model: Path, version: int) -> None:
    if version == 4:
        as_of_4(model)
    assert_alike(model)


def test_templates_are_found_where_transformers_finds_them(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
    assert_alike(folder)
    change(folder, chat_template=None)
    assert_alike(folder)
    named = [{"name": name, "template": f"{name} of the configuration"} for name in ("default", "tool_use")]
    change(folder, chat_template=named[:1])
    assert_alike(folder)
    change(folder, chat_template=named)
    assert_alike(folder)
    (folder / "chat_template.jinja").write_text("a file's\r\n")
    assert_alike(folder)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("a file's with tools")
    assert_alike(folder)
    (folder / "chat_template.jinja").unlink()
    assert_alike(folder)


def test_names_of_tokens_are_those_that_transformers_gives_a_template(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
    change(folder, image_token="<bos>", pad_token={"__type": "AddedToken", "content": "<bos>", "lstrip": False})
    assert_alike(folder)
    change(folder, extra_special_tokens={"mask_token": "<bos>", "sep_token": "<bos>"})
    assert_alike(folder)


Spoil = Callable[[Path], object]


def with_file(name: str, text: str = "{}") -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def with_config(**fields: Any) -> Spoil:
    return lambda folder: change(folder, **fields)


def in_tokenizer(**fields: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return spoil


PADDING = {
    "strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "<pad>",
}  # fmt: skip
SPOILT: dict[str, Spoil] = {
    "no configuration of the tokenizer": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "no configuration of the model": lambda folder: (folder / "config.json").unlink(),
    "no tokenizer.json": lambda folder: (folder / "tokenizer.json").unlink(),
    "another tokenizer.json": with_file("tokenizer.json", '{"model": {"type": "New"}}'),
    "a list": with_file("tokenizer_config.json", "[]"),
    "no class": with_config(tokenizer_class=None),
    "another class": with_config(tokenizer_class="LlamaTokenizerFast"),
    "a class of its own": with_config(tokenizer_class="BertTokenizer"),
    "code of its own": with_config(auto_map={"AutoTokenizer": [None, "code.Own"]}),
    "what we do not know": with_config(fix_mistral_regex=True),
    "another backend": with_config(backend="sentencepiece"),
    "a special token that is not in the file": with_config(mask_token="<other>"),
    "an extra token that is not in the file": with_config(extra_special_tokens=["<other>"]),
    "tokens in another form": with_config(extra_special_tokens=[{"content": "<bos>"}]),
    "added tokens beside the file's": with_config(added_tokens_decoder={"9000": {"content": "<other>"}}),
    "added tokens in another form": with_config(added_tokens_decoder={"x": {}}),
    "a map of special tokens": with_file("special_tokens_map.json"),
    "a list of added tokens": with_file("added_tokens.json"),
    "Mistral's own tokenizer": with_file("tekken.json"),
    "special tokens split as text": with_config(split_special_tokens=True),
    "extra tokens with names beside those without": with_config(
        extra_special_tokens={"mask_token": "<bos>"}, additional_special_tokens=["<bos>"]
    ),
    "a padding token that only the file names": in_tokenizer(padding=PADDING),
    "templates in another form": with_config(chat_template=[{"name": "default"}]),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_transformers_may_load_differently_is_left_to_it(
    tokenizer_folder: Path, tmp_path: Path, spoil: Spoil
) -> None:
    folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
    FastTokenizer(folder)
    spoil(folder)
    with pytest.raises(UnlikeError):
        FastTokenizer(folder)


BUILT_ELSE: dict[str, Spoil] = {
    "another split": in_tokenizer(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False}),
    "another normalizer": in_tokenizer(normalizer={"type": "NFKC"}),
    "a blank before each text": with_config(add_prefix_space=True),
    "a special token that takes blanks": lambda folder: in_tokenizer(
        added_tokens=[
            token | {"rstrip": token["content"] == "<|im_end|>"}
            for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        ]
    )(folder),
    "a special token of the class that the file lacks": lambda folder: in_tokenizer(
        added_tokens=[
            token
            for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
            if token["content"] != "<|endoftext|>"
        ]
    )(folder),
}


@pytest.mark.parametrize("spoil", BUILT_ELSE.values(), ids=BUILT_ELSE)
def test_what_its_class_would_build_otherwise_is_left_to_transformers(tmp_path: Path, spoil: Spoil) -> None:
    model_type, make = MADE["qwen2"]
    folder = saved(tmp_path / "model", model_type, make())
    FastTokenizer(folder)
    spoil(folder)
    with pytest.raises(UnlikeError):
        FastTokenizer(folder)


def chosen(folder: Path, model_type: str, named: str, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The class of tokenizers that transformers loads for a model; None if it has no such configuration."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    change(folder, tokenizer_class=named)
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerBase, "from_pretrained", classmethod(lambda cls, *_, **__: cls.__name__))
        try:
            found: str = AutoTokenizer.from_pretrained(folder)
        except Exception:  # noqa: BLE001 - of some models it needs more than their type
            return None
        return found


NAMED = (
    "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend", "LlamaTokenizerFast", "LlamaTokenizer",
    "GPT2TokenizerFast", "Qwen2TokenizerFast", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "GemmaTokenizerFast",
)  # fmt: skip


def test_the_classes_are_those_that_transformers_chooses(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    folder = shutil.copytree(tokenizer_folder, tmp_path / "model")
    known = {*AS_FILED, *CLASSES, "llama"}
    compared = 0
    for model_type in sorted({*TOKENIZER_MAPPING_NAMES, *known, "unheard-of"}):
        for named in NAMED if model_type in known else NAMED[:1]:
            try:
                ours = fast_tokenizer._class(model_type, {"tokenizer_class": named}) or "TokenizersBackend"
            except UnlikeError:
                continue
            theirs = chosen(folder, model_type, named, monkeypatch)
            if theirs is not None:
                assert ours == theirs, f"{named} of a {model_type}"
                compared += 1
    assert compared > 400


def test_a_process_that_counts_with_a_fast_tokenizer_imports_no_transformers(tokenizer_folder: Path) -> None:
    code = """
    import sys
    from gateway.tokens.local_count import count_body
    from gateway.tokens.render import TokenizerSource
    from gateway.wire.request import Api
    body = b'{"messages": [{"role": "user", "content": "the fox"}]}'
    assert count_body(TokenizerSource(sys.argv[1]), Api.CHAT, body, 1000).prompts
    heavy = {"transformers", "torch", "huggingface_hub", "httpx", "numpy"} & sys.modules.keys()
    assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tokenizer_folder)], check=True, timeout=60)
