"""Constants of a whole training step: how kernels fare inside one, and how wrong that is."""

from __future__ import annotations

from scantling.hardware.constants.fitted import Fitted, constants_file, inherit


class StepConstants(Fitted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kernels take inside a training step over what they take alone.

    A chip that runs for days is hotter and slower than one that runs a benchmark, its kernels
    wait for each other, and eager code passes over memory more often than a fused kernel. So each
    kind of work has a factor on the time of its kernels. Factors are one set a chip, whatever
    the model, the plan and the software; what the software does is said by the recipe.

    Args:
        matmul: Factor of products in 16 bits.
        matmul_fp8: Of products in FP8 with a scale a tensor.
        matmul_block: Of products in FP8 with a scale a block of 128.
        matmul_mxfp8: Of products in MXFP8.
        matmul_nvfp4: Of products in NVFP4.
        cold: Share of a product's activations that pass through memory beside its arithmetic:
            alone it finds them in the cache of the run before, in a step it does not.
        experts: Of grouped products, over that of plain ones.
        experts_fused: The same where sorting, quantising and activation are in their kernels.
        flash: Of attention by the first FlashAttention.
        flash_width: How its factor changes with the width of a head, 1 at 64.
        flash2: By the second.
        flash3: By the third, cuDNN and their like.
        scan: Of scans and short convolutions.
        eager: Of work that moves bytes, one kernel an operation.
        fused: The same compiled or fused by hand.
        loss: Of the bytes of the loss over the vocabulary, over that of other light work.
        exposed: Share of sharing weights and gradients that is meant to hide behind compute and
            does not.
        exposed_tensor: The same of what the ranks of a tensor or context group send, and stages.
        exposed_expert: The same of tokens on their way to experts and back.
        hop_s: What a collective between nodes costs for each rank it passes.
        serial: Factor of communication that compute waits for.
        optimizer: Of the optimizer's bytes.
        gap_eager_s: What each kernel adds that its predecessor does not hide, run eagerly.
        gap_fused_s: The same compiled or with few kernels.
        launch_eager_s: What the host takes to launch a kernel, run eagerly from Python: where
            that is longer than the kernels, the chip waits.
        launch_fused_s: The same compiled.
        wait_experts_s: What the host takes for a pass through a layer of experts, where it waits
            for their sizes.
        offload_bytes_per_s: Optimizer bytes a rank passes to and from the host in a second.
        decode: Factor of a decoding step over its kernels, on one chip.
        decode_low: The lower end of its 90 % range.
        decode_high: The upper end.
        error: Half-width of the 90 % interval of a whole step, as a logarithm; what follows adds
            to it in squares, each by the share of the step it concerns.
        error_narrow: Of products narrower than 16 bits.
        error_experts: Of routed experts and scans, their waits, and what experts send.
        error_attention: Of attention.
        error_light: Of work that moves bytes, and of gaps between kernels.
        error_sent: Of communication that shows.
        error_bubble: Of the bubble, and of waiting for the host.
        error_split: Of all that is computed where tensors or layers are split.
    """

    matmul: float
    matmul_fp8: float
    matmul_block: float
    matmul_mxfp8: float
    matmul_nvfp4: float
    cold: float
    experts: float
    experts_fused: float
    flash: float
    flash_width: tuple[tuple[int, float], ...]
    flash2: float
    flash3: float
    scan: float
    eager: float
    fused: float
    exposed: float
    exposed_tensor: float
    exposed_expert: float
    hop_s: float
    serial: float
    optimizer: float
    gap_eager_s: float
    gap_fused_s: float
    launch_eager_s: float
    launch_fused_s: float
    wait_experts_s: float
    offload_bytes_per_s: float
    decode: float
    decode_low: float
    decode_high: float
    error: float
    error_narrow: float
    error_experts: float
    error_attention: float
    error_light: float
    error_sent: float
    error_bubble: float
    error_split: float
    loss: float = 1.0

    @classmethod
    def default(cls) -> StepConstants:
        """Those of a chip of which nothing is known."""
        return inherit(constants_file("step"), (), "", cls)

    def matmul_at(self, dtype: str) -> float:
        """The factor of products in a recipe's dtype.

        Example:
            >>> from scantling.hardware import chip
            >>> step = chip("h100").constants.step
            >>> step.matmul_at("fp16") == step.matmul
            True
        """
        narrow = {
            "fp8": self.matmul_fp8, "fp8-block": self.matmul_block, "mxfp8": self.matmul_mxfp8,
            "nvfp4": self.matmul_nvfp4,
        }  # fmt: skip
        return narrow.get(dtype, self.matmul)

    def attention_at(self, kernel: str) -> float:
        """The factor of an attention kernel; unfused attention is made of products."""
        fused = {"flash": self.flash, "flash2": self.flash2, "flash3": self.flash3,
                 "cudnn": self.flash3}  # fmt: skip
        return fused.get(kernel, 1.0)
