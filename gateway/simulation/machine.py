"""The modelled engine: its capacity and its step times."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one engine step, as a sum over its work.

    The defaults are an 8B model with 16-bit weights on one 24 GB GPU with 1 TB/s of memory bandwidth: 16 GB of weights
    to read in each step, 16 GFLOP at 130 TFLOPS for each prefilled token, 128 KiB of KV for each token of context.
    """

    base: float = 0.016
    """Of any step."""
    per_sequence: float = 0.0001
    """For each sequence that decodes."""
    per_prefill_token: float = 0.00012
    per_context_token: float = 0.00000013
    """For each token of context read, over all sequences of the step."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One vLLM: its scheduling flags and its speed. Sizes are tokens unless named otherwise."""

    kv_tokens: int = 43_000
    block_size: int = 16
    max_model_len: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    watermark: float = 0.0
    """Share of blocks kept free at the admission of a request beside others."""
    prefix_caching: bool = True
    step: StepTime = field(default_factory=StepTime)

    def __post_init__(self) -> None:
        """Check what a scheduler needs.

        Raises:
            ValueError: there is no block, or the batch is too small for its sequences.
        """
        if self.block_size < 1 or self.blocks < 1:
            raise ValueError(f"{self.kv_tokens} tokens of KV cache are no block of {self.block_size}")
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({self.max_num_seqs}) must be at least 1 and at most max_num_batched_tokens "
                f"({self.max_num_batched_tokens})"
            )

    @property
    def blocks(self) -> int:
        """Usable blocks."""
        return self.kv_tokens // self.block_size
