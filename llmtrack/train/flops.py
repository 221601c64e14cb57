"""Floating-point operations of training, and the peak of a device."""

from __future__ import annotations

from typing import Any

# Peak of dense matrix products by the data sheets: (part of the device's name, {arithmetic: FLOP/s}).
# float32 is without TF32, which torch does not use by default.
PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200", {"bfloat16": 989e12, "float32": 67e12}),
    ("H100 PCIe", {"bfloat16": 756e12, "float32": 51e12}),
    ("H100 NVL", {"bfloat16": 835e12, "float32": 60e12}),
    ("H100", {"bfloat16": 989e12, "float32": 67e12}),
    ("A100", {"bfloat16": 312e12, "float32": 19.5e12}),
    ("L4", {"bfloat16": 121e12, "float32": 30.3e12}),
)


def peak_flops(device_name: str, arithmetic: str) -> float | None:
    """Look up a device's peak in FLOP/s by its name, such as `NVIDIA H100 80GB HBM3`; None if unknown."""
    words = device_name.split()
    for name, peaks in PEAKS:
        # Match whole words: L40 is not L4.
        if all(word in words for word in name.split()):
            return peaks.get(arithmetic)
    return None


def flops_per_token(matrix_parameters: int, layers: int, width: int, length: int) -> int:
    """Estimate the floating-point operations of forward and backward pass per trained token.

    Six per parameter of a matrix product (two forward, four backward), and for attention 12 x layers x width x length:
    the matrix products over a whole window, as if it were not causal.

    Source: A. Chowdhery et al., PaLM (2022), appendix B.

    Args:
        matrix_parameters: including the head, excluding embedding lookups.
        layers: of attention.
        width: heads times the width of a head.
        length: tokens of a window.
    """
    return 6 * matrix_parameters + 12 * layers * width * length


def counted_flops_per_token(model: Any, length: int) -> float:
    """Count the floating-point operations per trained token with PyTorch, over one window's forward and backward pass.

    Counts what `flops_per_token` estimates, with attention as two products whatever kernel computes it. Gradients and
    random state are preserved; the model is temporarily in `eval()`, without dropout.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    ids = torch.zeros((1, length), dtype=torch.int64, device=next(model.parameters()).device)
    was_training = model.training
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    counter = FlopCounterMode(display=False)
    try:
        model.eval()
        with counter, sdpa_kernel(SDPBackend.MATH):
            logits = model(input_ids=ids, use_cache=False).logits
            torch.autograd.grad(logits.float().logsumexp(-1).sum(), weights, allow_unused=True)
    finally:
        model.train(was_training)
    return counter.get_total_flops() / length
