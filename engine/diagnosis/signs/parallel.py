"""PURE. Signs of trouble with several GPUs: the split of the model, the visible cards, their communication.

Texts: vLLM 0.32 (`config/`, `distributed/`), torch 2.1 to 2.13 (ProcessGroupNCCL), NCCL 2.18 and later.
"""

from functools import partial

from engine.diagnosis.sign import Facts, Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.PARALLEL)
_MOST = 16
"""Largest group to propose."""


def _divisors(facts: Facts) -> Facts:
    heads = int(facts["heads"])
    sizes = [str(size) for size in range(1, min(heads, _MOST) + 1) if heads % size == 0]
    return {"divisors": ", ".join(sizes)}


SIGNS = (
    _sign(
        "heads not divisible",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)",
        "The model's {heads} attention heads cannot be split over {size} GPUs.",
        "Give a --tensor-parallel-size of {divisors}; other GPUs go to --pipeline-parallel-size.",
        derive=_divisors,
    ),
    _sign(
        "more GPUs than there are",
        r"(?:World size \(|Tensor parallel size \(|tensor_parallel_size=)(?P<asked>\d+)\)?,? "
        r"(?:is larger than the number of available GPUs \(|exceeds available GPUs \(|but only )(?P<there>\d+)",
        "{asked} GPUs were asked for, and the engine sees {there}.",
        "Give --tensor-parallel-size times --pipeline-parallel-size of at most {there}; if the machine has more GPUs, "
        "look at CUDA_VISIBLE_DEVICES.",
    ),
    _sign(
        "no pipeline parallelism",
        r"Pipeline parallelism is not supported for this model",
        "This model cannot be split into stages.",
        "Give --tensor-parallel-size in place of --pipeline-parallel-size.",
    ),
    _sign(
        "GPU masked",
        r"CUDA error: invalid device ordinal|Invalid device id|No CUDA GPUs are available|"
        r"CUDA error: no CUDA-capable device is detected",
        "The engine asks for a GPU that it cannot see.",
        "Look at CUDA_VISIBLE_DEVICES (indices count from 0 within it); in a container give `--gpus all`.",
    ),
    _sign(
        "one GPU twice",
        r"Duplicate GPU detected ?: rank (?P<first>\d+) and rank (?P<second>\d+) both on CUDA device (?P<device>\w+)",
        "Ranks {first} and {second} were put on the same GPU ({device}).",
        "Name each GPU once in CUDA_VISIBLE_DEVICES, and no MIG slices of one card in one group.",
    ),
    _sign(
        "too little shared memory",
        r"Error while creating shared memory segment (?P<path>\S+)|unable to (?:open|write to|allocate) shared memory|"
        r"Bus error|bus error",
        "There is too little shared memory: a container gets 64 MiB of /dev/shm unless it is told otherwise.",
        "Give the container `--ipc=host` or `--shm-size 8g`; in Kubernetes mount an emptyDir of medium Memory on "
        "/dev/shm.",
    ),
    _sign(
        "NCCL without peer access",
        r"nvmlDeviceGetP2PStatus.* failed|peer access is not supported between these two devices",
        "The GPUs cannot reach each other's memory, and NCCL tried.",
        "Set NCCL_P2P_DISABLE=1 and give --disable-custom-all-reduce.",
    ),
    _sign(
        "NCCL finds no network",
        r"NCCL WARN Bootstrap ?: no socket interface found|no socket interface found",
        "NCCL found no network interface to talk over.",
        "Set NCCL_SOCKET_IFNAME to the one that joins the machines (`ip -br addr`); on one machine: lo.",
    ),
    _sign(
        "collective timed out",
        r"Watchdog caught collective operation timeout.*?OpType=(?P<operation>\w+)",
        "A GPU waited for the others in {operation} until its patience ended: one of them hangs or has died.",
        "Look for what happened before on another rank; if nothing did, set NCCL_P2P_DISABLE=1 and give "
        "--disable-custom-all-reduce.",
        weight=Weight.EFFECT,
        permanent=False,
    ),
    _sign(
        "NCCL failed",
        r"NCCL error(?: in)?: ?(?P<why>.{1,160})",
        "The GPUs' communication failed: {why}",
        "Set NCCL_DEBUG=INFO for one start, and read its last WARN. The usual ways out: `--shm-size 8g` for the "
        "container, NCCL_P2P_DISABLE=1, --disable-custom-all-reduce.",
        weight=Weight.EFFECT,
        permanent=False,
    ),
    _sign(
        "ranks cannot connect",
        r"(?:DistNetworkError|DistStoreError): .*?(?P<why>timed out|failed to connect|[Cc]onnection reset)",
        "The engine's processes cannot reach each other: {why}.",
        "Set VLLM_HOST_IP to an address that all of them reach; look at firewalls and HTTP proxies.",
        weight=Weight.EFFECT,
        permanent=False,
    ),
    _sign(
        "Ray has no GPU",
        r"Cannot provide a placement group|current node has no GPU available|No available node types can fulfill",
        "Ray has no room for the engine's workers.",
        "Look at `ray status`; on one machine give --distributed-executor-backend mp.",
    ),
    _sign(
        "no peer-to-peer",
        r"Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed",
        "The GPUs have no peer-to-peer access, so that every step goes through main memory.",
        "Expected on consumer cards. On servers look at `nvidia-smi topo -p2p r`, and turn IOMMU/ACS off; in a VM pass "
        "the GPUs through together.",
        weight=Weight.HINT,
    ),
    _sign(
        "PCIe between more than two GPUs",
        r"Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs",
        "More than two GPUs share a model over PCIe, where the fast all-reduce does not work.",
        "Give --pipeline-parallel-size in place of some --tensor-parallel-size: stages exchange far less.",
        weight=Weight.HINT,
    ),
)
