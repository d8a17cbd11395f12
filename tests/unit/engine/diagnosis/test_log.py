import signal

import pytest

from engine.diagnosis.log import LAST_SIGNS, SIGNS, diagnose
from engine.diagnosis.sign import Sign

# One line for each sign, as vLLM 0.32 prints it, or the version that does.
EXAMPLES = """\
api_server.py: error: unrecognized arguments: --no-such-flag
api_server.py: error: argument --max-model-len: invalid human_readable_int_or_auto value: 'many'
api_server.py: error: ambiguous option: --max could match --max-model-len, --max-num-seqs
OSError: [Errno 98] Address already in use
OSError: You are trying to access a gated repo.
httpx.HTTPStatusError: 401 Client Error. (Request ID: x)
  Value error, Invalid repository ID or local directory specified: '/models/empty'.
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'name' or 'space/name': '/models/missing'. Use
OSError: nobody/nothing is not a local folder and is not a valid model identifier listed on the hub
OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them
huggingface_hub.errors.LocalEntryNotFoundError: Cannot find [...] and outgoing traffic has been disabled. To enable
(Worker pid=1) ERROR 11-20 18:11:38 [x.py:953] RuntimeError: Cannot find any model weights with `/models/half`
ValueError: Model architectures ['StrangeForCausalLM'] are not supported for now.
RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer
  Value error, User-specified max_model_len (100000) is greater than the derived max_model_len (max_position_embeddings\
=8192.0 or model_max_length=None in model's config.json). [type=value_error, input_value=ArgsKwargs(())]
ValueError: To serve at least one request with the model's max seq len (2048), (0.13 GiB KV cache is needed, which is \
larger than the available KV cache memory (0.02 GiB). Based on the available memory, the estimated maximum
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`
ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.92,
ValueError: Available memory on node 0 (13.0/14.5 GiB) on kv cache allocation is less than requested memory for kv (500
RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.
(Worker pid=1) ERROR 11-20 18:11:38 [x.py:95] Failed to load model - not enough GPU memory. Try lowering
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
ValueError: max_num_batched_tokens (512) must be greater than or equal to max_num_seqs (1024).
  Value error, Total number of attention heads (2) must be divisible by tensor parallel size (3).
ValueError: World size (8) is larger than the number of available GPUs (4) in this node.
torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in (None, 'g++')
ModuleNotFoundError: No module named 'vllm'
""".splitlines()
TAIL = [
    "(EngineCore pid=2) ERROR 11-20 18:11:05 [core.py:1510] EngineCore failed to start.",
    "Traceback (most recent call last):",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


@pytest.mark.parametrize(("sign", "example"), list(zip(SIGNS, EXAMPLES, strict=True)), ids=range(len(SIGNS)))
def test_each_sign_is_found_above_the_generic_tail(sign: Sign, example: str) -> None:
    found = diagnose(["INFO: something before", example, *TAIL], 1)
    assert found.permanent is sign.permanent
    assert found.cause.startswith(sign.cause.partition("{")[0])
    assert "{" not in found.cause + found.remedy
    assert found.evidence
    assert found.evidence in example
    assert found.remedy


def test_the_words_of_the_log_are_in_the_sentence() -> None:
    found = diagnose([EXAMPLES[14]], 1)
    assert str(found).splitlines()[:2] == [
        "--max-model-len 100000 is more than the 8192 positions the model has.",
        "Ask for at most 8192.",
    ]
    assert "type=value_error" not in str(found)


def test_an_unknown_failure_shows_the_first_real_error() -> None:
    log = [
        "(APIServer pid=1) WARNING 11-20 18:09:16 [x.py:255] This can cause errors like `OSError: [Errno 24] Too many",
        "(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63] Traceback (most recent call last):",
        "(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63]     raise ValueError(",
        "(Worker pid=3) ERROR 11-20 18:11:05 [x.py:63] ValueError: the moon is in the wrong house",
        "(EngineCore pid=2) ERROR 11-20 18:11:06 [x.py:9] RuntimeError: Worker failed with error 'the moon'",
        *TAIL,
    ]
    assert diagnose(log, 1).cause == "It ended with exit code 1: ValueError: the moon is in the wrong house"


def test_a_validation_error_is_shown_by_its_sentence() -> None:
    log = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, a thing is wrong [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]",
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
    ]
    assert diagnose(log, 1).cause == "It ended with exit code 1: Value error, a thing is wrong"


def test_a_kill_is_not_blamed_on_an_old_error() -> None:
    found = diagnose(["ValueError: of some request, long ago"], -signal.SIGKILL)
    assert "SIGKILL" in found.cause
    assert not found.permanent


def test_an_engine_process_that_died_without_a_word() -> None:
    # What the API server of 0.32 prints after a kill -9 of its EngineCore; it then exits with 0.
    log = [
        "ERROR 11-20 18:15:59 [x.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    ]
    assert diagnose(log, 0).cause == LAST_SIGNS[0].cause


def test_a_program_that_says_nothing() -> None:
    assert str(diagnose([], 3)) == "It ended with exit code 3."
