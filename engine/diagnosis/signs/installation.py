"""PURE. Signs of an installation that lacks a part: vLLM itself, a compiler, a driver, code for this GPU.

Texts: vLLM 0.32 (`platforms/`), torch and Python.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign

_sign = partial(Sign, kind=Kind.ARGUMENT)

SIGNS = (
    _sign(
        "no compiler",
        r"InvalidCxxCompiler|No working C\+\+ compiler found|Failed to find C compiler",
        "vLLM compiles parts of the model here, and there is no C++ compiler.",
        "Install one (apt-get install g++), or give --enforce-eager.",
    ),
    _sign(
        "no vLLM",
        r"No module named '?vllm\b",
        "The interpreter has no vLLM.",
        "Name one that has it, or let kvgate set up its own.",
    ),
    _sign(
        "no device",
        r"Failed to infer device type",
        "vLLM found no GPU driver, and this build has nothing else to run on.",
        "Check `nvidia-smi`; in a container give `--gpus all`; without a GPU use the CPU build.",
    ),
    _sign(
        "driver too old",
        r"The NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "The NVIDIA driver is older than the CUDA this vLLM was built with.",
        "Update the driver (`nvidia-smi` names its CUDA version), or use a vLLM built for it.",
    ),
    _sign(
        "GPU not in the build",
        r"no kernel image is available for execution on the device",
        "This vLLM was not built for this GPU's architecture.",
        "Use a build that names its compute capability (`nvidia-smi --query-gpu=compute_cap --format=csv`).",
    ),
)
