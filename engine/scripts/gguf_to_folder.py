"""Turn a GGUF file into an ordinary model folder. Runs in the engine's environment: `gguf_to_folder.py FILE FOLDER`."""

import sys
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(gguf: Path, folder: Path) -> None:
    """Write weights (bfloat16), configuration, tokenizer and chat template of `gguf` to `folder`."""
    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=name, dequantize=True),
    )
    # The weights are plain by now, but transformers still takes the model for quantized and refuses to save it.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
