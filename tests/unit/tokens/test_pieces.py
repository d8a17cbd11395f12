"""Cut texts are encoded as whole ones, whatever a tokenizer does before and around its added tokens."""

import random
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from gateway.tokens import pieces
from gateway.tokens.pieces import ENTRY, MOST_CUTS, Pieces, safe_cuts

MARKS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<", "<|", "s>\n", "\n\n", "|><|", "word"]
"""Some begin inside others, or with blanks, or are words."""
FLAGS: dict[str, dict[str, bool]] = {
    "plain": {},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "normalized": {"normalized": True},
    "single word": {"single_word": True},
}
KINDS = {
    "byte level": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte level with a blank before": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace at the first": (None, pre_tokenizers.Metaspace(prepend_scheme="first")),
    "metaspace everywhere": (None, pre_tokenizers.Metaspace(prepend_scheme="always")),
    "llama": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "composed and lowered": (
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
        pre_tokenizers.Split(Regex(r"\s+|\w+|[^\w\s]+"), "isolated"),
    ),
}
WORDS = [
    "the",
    " fox",
    " jumps\n",
    "  ",
    "\n",
    "é",
    "e\u0301",
    "ﬁ",
    "世界",
    "<",
    ">",
    "|",
    "word",
    "im_start",
    "S>",
    "2\u00bd",
]


@cache
def tokenizer(kind: str, flags: str, marks: int) -> Tokenizer:
    """A small tokenizer with a choice of `MARKS`, special tokens and others, of which some have these flags."""
    chosen = random.Random(marks).sample(MARKS, 6)  # noqa: S311
    made = Tokenizer(BPE())
    normalizer, pre_tokenizer = KINDS[kind]
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the quick brown fox jumps\n over the lazy dog " * 20, " ".join(WORDS * 5)], trainer)
    for number, mark in enumerate(chosen):
        given_flags = {"normalized": False} | (FLAGS[flags] if number % 2 else {})
        add = made.add_special_tokens if number % 3 else made.add_tokens
        add([AddedToken(mark, special=bool(number % 3), **given_flags)])
    return made


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", 1)
        yield


def encoding(made: Tokenizer) -> Pieces | None:
    cuts = safe_cuts(made.get_added_tokens_decoder().values(), MARKS)
    return None if cuts is None else Pieces(lambda texts: whole(made, texts), cuts)


def whole(made: Tokenizer, texts: Sequence[str]) -> list[Sequence[int]]:
    return [one.ids for one in made.encode_batch_fast(list(texts), add_special_tokens=False)]


@settings(max_examples=1000)
@given(
    kind=st.sampled_from(list(KINDS)),
    flags=st.sampled_from(list(FLAGS)),
    marks=st.integers(0, 19),
    turns=st.lists(st.lists(st.sampled_from(MARKS + WORDS), max_size=12).map("".join), min_size=1, max_size=4),
)
def test_a_conversation_that_grows_has_the_ids_of_one_encoded_at_once(
    kind: str, flags: str, marks: int, turns: list[str]
) -> None:
    made = tokenizer(kind, flags, marks)
    memory = encoding(made)
    if memory is None:
        return
    for end in range(1, len(turns) + 1):
        text = "".join(turns[:end])
        assert list(memory.ids(text)) == list(whole(made, [text])[0])


def test_only_what_is_new_is_encoded() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[len(text)] for text in texts]

    cuts = safe_cuts([AddedToken("<u>", normalized=False)], ["<u>"])
    assert cuts is not None
    memory = Pieces(encode, cuts)
    memory.ids("<u>one<u>two")
    assert list(memory.ids("<u>one<u>two<u>three<u>one")) == [6, 6, 8, 6]
    assert asked == ["<u>one", "<u>two", "<u>three"]
    assert memory.tokens == 3 * (1 + ENTRY)


def test_short_turns_are_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 8)
    cuts = safe_cuts([AddedToken("<u>", normalized=False)], ["<u>"])
    assert cuts is not None
    memory = Pieces(lambda texts: [[len(text)] for text in texts], cuts)
    assert list(memory.ids("<u>1<u>2<u>3<u>4<u>5")) == [8, 8, 4]


@pytest.mark.parametrize(
    ("added", "safe"),
    [
        ([AddedToken("<a>", normalized=False)], True),
        ([AddedToken("<a>", normalized=True)], False),
        ([AddedToken("<a>", normalized=False, lstrip=True)], False),
        ([AddedToken("<a>", normalized=False), AddedToken("b", normalized=False, single_word=True)], False),
        ([AddedToken("<a>", normalized=False), AddedToken("x<", normalized=False)], False),
        ([AddedToken("<a>", normalized=False), AddedToken("x<a>x", normalized=True)], False),
        ([AddedToken("<a>", normalized=False), AddedToken("<a><a>", normalized=False)], False),
        ([AddedToken("<a>", normalized=False), AddedToken("<a>b", normalized=False)], True),
        ([AddedToken("<a>", normalized=False), AddedToken("<a>b", normalized=False, lstrip=True)], False),
        ([], False),
    ],
)
def test_only_tokens_that_nothing_before_them_can_touch_are_safe(added: list[AddedToken], *, safe: bool) -> None:
    assert (safe_cuts(added, ["<a>"]) is not None) is safe
    assert safe_cuts(added, []) is None


def test_of_very_many_tokens_those_that_help_most_are_looked_for() -> None:
    """A model has a thousand. Each was tried at each `<` of a text: 60 KB of HTML stopped all others for 60 ms."""
    names = [f"<{number}>" for number in range(1000)]
    cuts = safe_cuts([AddedToken(name, normalized=False) for name in reversed(names)], names)
    assert cuts is not None
    assert set(cuts.pattern.split("|")) == set(names[:MOST_CUTS])


def test_a_token_that_begins_with_a_blank_is_not_safe() -> None:
    assert safe_cuts([AddedToken("\n\n", normalized=False)], ["\n\n"]) is None


def test_it_remembers_so_much_and_forgets_the_longest_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_TOKENS", 2 * (4 + ENTRY))
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[0] * 4 for _ in texts]

    cuts = safe_cuts([AddedToken("<u>", normalized=False)], ["<u>"])
    assert cuts is not None
    memory = Pieces(encode, cuts)
    for text in ("<u>one", "<u>two", "<u>one", "<u>three", "<u>one"):
        memory.ids(text)
        assert memory.tokens <= 2 * (4 + ENTRY)
    assert asked == ["<u>one", "<u>two", "<u>three"]
    memory.ids("<u>two")
    assert asked[-1] == "<u>two"


def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_TOKENS", 10 * ENTRY)
    made = tokenizer("byte level", "plain", 0)
    memory = encoding(made)
    assert memory is not None
    texts = ["".join(random.Random(seed).choices(MARKS + WORDS, k=30)) for seed in range(50)]  # noqa: S311
    expected = [list(ids) for ids in whole(made, texts)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        chosen = random.Random(seed).choices(range(50), k=200)  # noqa: S311
        wrong.extend(number for number in chosen if list(memory.ids(texts[number])) != expected[number])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert memory.tokens == sum(ENTRY + len(ids) for ids in memory._known.values())


def test_many_small_pieces_take_no_more_memory_than_few_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_TOKENS", 2**16)
    cuts = safe_cuts([AddedToken("<u>", normalized=False)], ["<u>"])
    assert cuts is not None
    memory = Pieces(lambda texts: [[1] for _ in texts], cuts)
    tracemalloc.start()
    try:
        for number in range(5000):
            memory.ids(f"<u>{number}")
        assert tracemalloc.get_traced_memory()[0] < 2 * 4 * 2**16
    finally:
        tracemalloc.stop()
