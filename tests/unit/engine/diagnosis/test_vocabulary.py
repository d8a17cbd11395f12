from dataclasses import replace

import pytest

from engine.diagnosis.vocabulary import ModelSide, TokenizerSide, judge, looked_at, markers

MODEL = ModelSide("LlamaForCausalLM", 1000, 1024, {"bos": [1], "eos": [2, 7]})
TOKENIZER = TokenizerSide("LlamaTokenizer", "LlamaTokenizerFast", 999, {"bos": 1, "eos": 2}, "{{ x }}", "<|im_start|>")


@pytest.mark.parametrize(
    ("model", "tokenizer", "sign", "words"),
    [
        (MODEL, replace(TOKENIZER, highest=1000), "token beyond the embedding", "up to 1000, and the embedding 1000"),
        (replace(MODEL, rows=900), replace(TOKENIZER, highest=800), "weights for another vocabulary", "900 rows"),
        (
            replace(MODEL, special={"eos": [1000, 2]}),
            TOKENIZER,
            "special ids of another tokenizer",
            "eos token is 1000",
        ),
        (replace(MODEL, special={"eos": [7]}), TOKENIZER, "special ids of another tokenizer", "stop_token_ids: [2]"),
        (MODEL, replace(TOKENIZER, template=None), "no chat template", "--chat-template"),
        (MODEL, replace(TOKENIZER, error="UndefinedError: x"), "chat template of another model", "UndefinedError: x"),
        (
            MODEL,
            replace(TOKENIZER, one_token={"<|im_start|>": False, "<|im_end|>": True}),
            "chat template of another model",
            "writes <|im_start|>, which",
        ),
    ],
)
def test_what_does_not_go_together(model: ModelSide, tokenizer: TokenizerSide, sign: str, words: str) -> None:
    (found,) = judge(model, tokenizer)
    assert found.sign == sign
    assert words in f"{found.cause} {found.remedy}"


@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [
        (MODEL, TOKENIZER),
        (replace(MODEL, rows=None), TOKENIZER),
        (replace(MODEL, vocab_size=None, rows=None, special={}), TOKENIZER),
        (MODEL, replace(TOKENIZER, special={})),
        (MODEL, replace(TOKENIZER, one_token={"<|im_start|>": True})),
    ],
)
def test_what_does(model: ModelSide, tokenizer: TokenizerSide) -> None:
    assert list(judge(model, tokenizer)) == []


def test_the_model_s_side_is_read_out_of_its_configs() -> None:
    side = ModelSide.read(
        {"architectures": ["X"], "text_config": {"vocab_size": 50, "eos_token_id": 3, "pad_token_id": -1}},
        {"eos_token_id": [3, 4], "bos_token_id": None},
        {"model.layers.0.mlp.weight": (7, 7), "model.language_model.embed_tokens.weight": (64, 8)},
    )
    assert side == ModelSide("X", 50, 64, {"eos": [3, 4]})
    assert ModelSide.read({}, None, {}) == ModelSide("unknown", None, None)


def test_classes_and_ids_are_shown() -> None:
    said = "\n".join(looked_at(MODEL, TOKENIZER))
    assert "model class LlamaForCausalLM, tokenizer class LlamaTokenizer (declared LlamaTokenizerFast)" in said
    assert "special ids of the model: bos 1, eos 2/7; of the tokenizer: bos 1, eos 2" in said


def test_markers_of_templates() -> None:
    assert markers("<s>[INST] Hello [/INST]<|im_start|>user a < b |> c<start_of_turn>") == [
        "<s>", "<start_of_turn>", "<|im_start|>", "[/INST]", "[INST]",
    ]  # fmt: skip
