import pytest

from engine.phases import VLLM_SIGNS, Progress, StartPhase, StartProgress, read_progress

# A start of vLLM 0.32 on a CPU, shortened to the lines around those that matter.
CPU_START = """\
Triton is installed, but doesn't include CPU backend. Disabling Triton.
(APIServer pid=9979) INFO 11-20 18:04:19 [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'port': 41479}
(APIServer pid=9979) INFO 11-20 18:04:19 [model.py:733] Resolved architecture: LlamaForCausalLM
(EngineCore pid=10008) INFO 11-20 18:04:28 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
(Worker pid=10097) INFO 11-20 18:04:37 [cpu_model_runner.py:68] Starting to load model /models/random-llama...
Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 254.49it/s]
(Worker pid=10097) INFO 11-20 18:04:37 [default_loader.py:501] Loading weights took 0.01 seconds
(EngineCore pid=10008) INFO 11-20 18:04:38 [kv_cache_utils.py:2327] CPU KV cache size: 8,192 tokens, Maximum \
concurrency for 2,048 tokens per request: 4.00x
(APIServer pid=9979) INFO 11-20 18:04:39 [entry.py:140] Starting vLLM server on http://127.0.0.1:41479
INFO:     Application startup complete.
"""


def test_a_start_is_told_phase_by_phase_and_nothing_twice() -> None:
    start = StartProgress(VLLM_SIGNS)
    told = [progress for line in CPU_START.splitlines() if (progress := start.read(line))]
    assert [str(progress) for progress in told] == [
        "reading the model's configuration",
        "loading weights",
        "loading weights: 0%",
        "loading weights: 100%",
        "sizing the KV cache: 8,192 tokens",
        "serving: http://127.0.0.1:41479",
    ]


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (
            "INFO 01-01 00:00:00 [x.py:1] GPU KV cache size: 1,234,567 tokens",
            Progress(StartPhase.PROFILING, "1,234,567 tokens"),
        ),
        (
            "INFO 01-01 00:00:00 [x.py:1] Available KV cache memory: 58.2 GiB",
            Progress(StartPhase.PROFILING, "58.2 GiB to hold it"),
        ),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  42%|####  |",
            Progress(StartPhase.CAPTURING, "42%"),
        ),
        ("Capturing CUDA graph shapes:   3%|1  |", Progress(StartPhase.CAPTURING, "3%")),
        ("model-00001-of-00002.safetensors:  17%|##   | 1G/6G", Progress(StartPhase.DOWNLOADING, "17%")),
        ("INFO 01-01 00:00:00 [x.py:1] Dynamo bytecode transform time: 4.2 s", Progress(StartPhase.COMPILING)),
        (
            "INFO 01-01 00:00:00 [x.py:1] Starting vLLM API server 0 on http://127.0.0.1:8000",
            Progress(StartPhase.SERVING, "http://127.0.0.1:8000"),
        ),
        ("INFO 01-01 00:00:00 [x.py:1] Using max model len 2048", None),
    ],
)
def test_signs_of_other_builds_and_versions(line: str, progress: Progress | None) -> None:
    assert read_progress(line, VLLM_SIGNS) == progress


def test_a_phase_never_goes_back() -> None:
    start = StartProgress(VLLM_SIGNS)
    start.read("CPU KV cache size: 8,192 tokens")
    assert start.read("Loading safetensors checkpoint shards: 100% Completed | 1/1") is None
    assert start.current.phase is StartPhase.PROFILING
