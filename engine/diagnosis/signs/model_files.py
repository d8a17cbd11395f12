"""PURE. Signs of a model that is out of reach, or whose files are wrong.

Texts: vLLM 0.32 (`model_executor/model_loader/`, `lora/`), transformers 5.19, huggingface_hub 1.x and the older forms
of huggingface_hub 0.x, safetensors.
"""

from functools import partial

from engine.diagnosis.sign import Kind, Sign, Weight

_sign = partial(Sign, kind=Kind.MODEL)

_AGAIN = "Delete the file and load it again: `hf download MODEL` (in a folder from git: `git lfs pull`)."

SIGNS = (
    _sign(
        "gated model",
        r"You are trying to access a gated repo|Cannot access gated repo for url (?P<url>\S+)",
        "The model is gated on the hub, and no token that may read it was given.",
        "Accept its licence on the hub, and set HF_TOKEN.",
    ),
    _sign(
        "token refused",
        r"401 Client Error|Invalid credentials|Invalid user token",
        "The hub refused the token.",
        "Set HF_TOKEN to a valid one.",
        weight=Weight.EFFECT,
    ),
    _sign(
        "no such revision",
        r"Revision Not Found for url|is not a valid git identifier .*?for this model name",
        "The model has no such revision on the hub.",
        "Correct --revision.",
    ),
    _sign(
        "no model in the folder",
        r"Invalid repository ID or local directory specified: '(?P<model>[^']*)'",
        "There is no model in {model}: no config.json or params.json.",
        "Name a folder that holds a model, or a hub id.",
    ),
    _sign(
        "no such folder",
        r"HFValidationError: Repo id must .*?: '(?P<model>[^']*)'",
        "The model folder {model} does not exist.",
        "Correct the path.",
    ),
    _sign(
        "no such model",
        r"Repository Not Found for url: (?P<url>\S+)|"
        r"(?<!\S)(?P<model>\S++) is not a local folder and is not a valid model",
        "The hub has no such model, or it is private.",
        "Check its name; for a private one set HF_TOKEN.",
    ),
    _sign(
        "offline and not here",
        r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled): .*(?:outgoing traffic has been disabled|offline mode)|"
        r"is incomplete: \d+ file\(s\) are missing .*Outgoing traffic is disabled",
        "The model is not whole in the local hub cache, and HF_HUB_OFFLINE forbids to download it.",
        "Unset HF_HUB_OFFLINE, or give a local folder.",
    ),
    _sign(
        "hub out of reach",
        r"We couldn't connect to '(?P<hub>[^']*)'",
        "The model is not on this machine, and {hub} cannot be reached.",
        "Give a local folder, connect the machine, or set HF_ENDPOINT to a mirror.",
        permanent=False,
    ),
    _sign(
        "disk full",
        r"\[Errno 28\] No space left on device|Not enough free disk space to download|No space left on device "
        r"\(os error 28\)",
        "The disk is full.",
        "Make room, or set HF_HOME to a larger disk.",
    ),
    _sign(
        "download of the wrong size",
        r"Consistency check failed: file should be of size (?P<expected>\d+) but has size (?P<actual>\d+)",
        "A file of the hub cache has {actual} bytes and not {expected}: its download was cut short.",
        _AGAIN,
    ),
    _sign(
        "download taken away",
        r"(?:FileNotFoundError|OSError).*?(?P<file>[^'\s]+\.incomplete)",
        "A half-loaded file of the hub cache vanished: two processes load into one cache, over a disk without locks.",
        "Load the model once, alone (`hf download MODEL`), then start the engines; on a network disk set "
        "HF_HUB_OFFLINE=1 for them.",
    ),
    _sign(
        "cache lock waited for",
        r"till waiting to acquire lock on (?P<file>\S+)",
        "It waits for a lock of the hub cache that another process holds: {file}.",
        "Let the other download end; where none runs, delete the lock file.",
        weight=Weight.HINT,
    ),
    _sign(
        "corrupt weights",
        r"SafetensorError: Error while deserializing header: (?P<why>.+)|SafetensorError: (?P<other>Invalid header.*)",
        "A weight file is damaged or was not loaded whole ({why}{other}).",
        _AGAIN,
    ),
    _sign(
        "corrupt pickle",
        r"(?:UnpicklingError: |PytorchStreamReader failed )(?P<why>.+)",
        "A weight file is damaged or was not loaded whole ({why}).",
        _AGAIN,
    ),
    _sign(
        "missing shards",
        r"Weight files referenced in index but missing: (?P<files>.+)",
        "Weight files that the index names are missing: {files}.",
        "Complete the download: `hf download MODEL`.",
    ),
    _sign(
        "missing weights",
        r"Cannot find any model weights with [`'](?P<model>[^`']+)",
        "The model folder {model} holds no weights.",
        "Complete the download of the model (*.safetensors).",
    ),
    _sign(
        "weights for another vocabulary",
        r"AssertionError: assert loaded_weight\.shape\[output_dim\] == ",
        "The checkpoint's embedding has another number of rows than `vocab_size` of config.json.",
        "Put back the model's own config.json; after tokens were added, save model and config together "
        "(`resize_token_embeddings`).",
    ),
    _sign(
        "weights of another shape",
        r"Attempted to load weight \((?:torch\.Size\()?(?P<loaded>\[[^\]]*\])\)?\) into parameter "
        r"\((?:torch\.Size\()?(?P<wanted>\[[^\]]*\])",
        "A weight of the checkpoint has the shape {loaded}, and config.json makes it {wanted}.",
        "Config and weights are of two models: take both from one.",
    ),
    _sign(
        "weights narrower than the model",
        r"start \(\d+\) \+ length \((?P<wanted>\d+)\) exceeds dimension size \((?P<loaded>\d+)\)",
        "A weight of the checkpoint is {loaded} wide, and config.json asks for {wanted}.",
        "Config and weights are of two models: take both from one.",
        within=r"weight_loader|load_weights",
    ),
    _sign(
        "weights the model does not know",
        r"There is no module or parameter named '(?P<name>[^']+)' in (?P<model>\w+)",
        "The checkpoint has a weight {name}, which {model} has not.",
        "Check `architectures` in config.json; for an adapter's weights give --lora-modules, and its base as MODEL.",
    ),
    _sign(
        "weights left out",
        r"Following weights were not initialized from checkpoint: (?P<names>.{1,200})",
        "The checkpoint does not hold every weight that config.json asks for: {names}",
        "Complete the download, or put back the model's own config.json.",
    ),
    _sign(
        "config is no JSON",
        r"config file at '(?P<file>[^']+)' is not a valid JSON file",
        "The file {file} is damaged: it is no JSON.",
        _AGAIN,
    ),
    _sign(
        "unsupported architecture",
        r"Model architectures (?P<names>\[.*?\]) (?:are not supported|failed to be inspected)",
        "This vLLM cannot run the architecture {names}.",
        "Use a newer vLLM, or another model.",
    ),
    _sign(
        "architecture unknown to transformers",
        r"model type `(?P<name>[^`]+)` but Transformers does not recognize this architecture",
        "The engine's transformers does not know the model type {name}.",
        "Use a newer vLLM, or give --trust-remote-code where the model brings its own code.",
    ),
    _sign(
        "LoRA rank over the limit",
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<limit>\d+)",
        "The adapter has rank {rank}, and --max-lora-rank is {limit}.",
        "Give --max-lora-rank {rank} (or the next of 8, 16, 32, 64, 128, 256, 320, 512).",
    ),
    _sign(
        "LoRA for another base, modules",
        r"While loading (?P<adapter>\S+), expected target modules in .*? but received (?P<names>\[.{1,200})",
        "The adapter {adapter} changes modules that the base model has not: {names}",
        "Load it on the base that its adapter_config.json names (`base_model_name_or_path`).",
    ),
    _sign(
        "LoRA for another base, vocabulary",
        r"The embedding LoRA size\((?P<rows>\d+)\) must be consistent with the base model's vocabulary "
        r"size\((?P<base>\d+)\)",
        "The adapter was trained for a vocabulary of {rows}, and the base model has {base}.",
        "Load it on the base that its adapter_config.json names (`base_model_name_or_path`).",
    ),
    _sign(
        "LoRA for another base, shape",
        r"The size of tensor a \((?P<adapter>\d+)\) must match the size of tensor b \((?P<base>\d+)\)",
        "The adapter's weights have another width than the base model's: {adapter} and {base}.",
        "Load it on the base that its adapter_config.json names (`base_model_name_or_path`).",
        within=r"lora",
    ),
    _sign(
        "LoRA not found",
        r"LoRAAdapterNotFoundError: Loading lora (?P<name>\S+) failed: No adapter found for (?P<path>\S+)|"
        r"No adapter found for (?P<only_path>\S+)",
        "There is no adapter in {path}{only_path}.",
        "Correct --lora-modules NAME=PATH: the folder needs adapter_config.json and the weights.",
    ),
)
