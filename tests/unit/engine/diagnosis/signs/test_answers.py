"""What looks like a broken answer and is none. What is one is in `log_texts.yaml`."""

import pytest

from engine.diagnosis.log_cause import read_log

FINE = [
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>user<|end_header_id|>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>",
    "<|endoftext|><|endoftext|><|endoftext|>",
    "content='No, no, no, no! Very, very, very good!!!'",
    "the end of the end of the end of the end of the end of the end of the end of the end of the end of the",
    "!!!! WARNING !!!!",
    "x = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
    "- - - - - - - - - - - - - - - - - - - - - -",
    "[None, None, None, None, None, None, None, None, None, None, None, None, None, None]",
    "GPU0 X NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE NODE",
]


@pytest.mark.parametrize("text", FINE)
def test_language_and_templates_are_no_sign(text: str) -> None:
    assert [found.sign for found in read_log(text.splitlines())] == []
