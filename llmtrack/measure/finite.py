"""Check for NaN or infinite logits behind generated tokens: the speed of a broken model is meaningless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.errors import ScenarioError, in_words

NON_FINITE: Final = "non_finite"
"""Kind of the failure."""

PROBE_TOKENS = 64
"""Prompt tokens of the first row whose logits are checked one by one."""


def check_finite(
    engine: Engine, requests: Sequence[GenerateRequest], new_ids: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """Check the logits that the output tokens were chosen from; return warnings if they could not be checked.

    Logits are checked through `score`, which never holds those of a whole batch: the log-likelihood of the most likely
    token is finite if and only if its distribution is. A single -inf, as for a masked vocabulary entry, is fine. Logits
    inside the prompt are checked for the first row only.

    Args:
        new_ids: the generated ids per row, over all calls.

    Raises:
        ScenarioError: of kind `non_finite`, a distribution is not finite.
    """
    try:
        first = 0
        for request in requests:
            _check_prompt(engine, request.prompt_ids[0][:PROBE_TOKENS])
            _check_output(engine, request, new_ids[first : first + len(request.prompt_ids)])
            first += len(request.prompt_ids)
    except NotImplementedError:
        return ("whether the logits are finite is unknown: this engine does not expose them",)
    except Exception as error:
        if isinstance(error, ScenarioError) and error.kind == NON_FINITE:
            raise
        # A failed check must not fail the measurement.
        return (f"whether the logits are finite is unknown: {in_words(error)}",)
    return ()


def not_finite(subject: str, engine: Engine) -> ScenarioError:
    """Return the error for NaN or infinite values, such as `the logits are`."""
    label = engine.info.dtype_label
    # Only float16 has a range so small that sound weights can overflow it.
    remedy = "use dtype=float32 or bfloat16, or " if "float16" in label.replace("bfloat16", "") else ""
    return ScenarioError(f"{subject} not finite in {label}: {remedy}look for damaged weights", kind=NON_FINITE)


def _check_prompt(engine: Engine, ids: Sequence[int]) -> None:
    import torch

    if not torch.isfinite(torch.logsumexp(engine.next_token_logits(ids).float(), dim=-1)).all():
        raise not_finite("the logits of the prompt are", engine)


def _check_output(engine: Engine, request: GenerateRequest, output: Sequence[Sequence[int]]) -> None:
    import torch

    from llmtrack.tensors.padding import pad_rows

    if request.padding_side == "left":  # pad as during generation
        new_ids, new_mask = pad_rows(output, 0, "right")
        prompt_ids, prompt_mask = pad_rows(request.prompt_ids, 0, "left", request.padded_length)
        ids, mask = torch.cat([prompt_ids, new_ids], dim=1), torch.cat([prompt_mask, new_mask], dim=1)
        scored = torch.cat([torch.zeros_like(prompt_ids), new_mask], dim=1).bool()
    else:
        pairs = list(zip(request.prompt_ids, output, strict=True))
        ids, mask = pad_rows([[*prompt, *new] for prompt, new in pairs], 0, "right")
        scored = pad_rows([[0] * len(prompt) + [1] * len(new) for prompt, new in pairs], 0, "right")[0].bool()
    sums, _ = engine.score(ids, mask, scored)
    bad = [str(row) for row, finite in enumerate(torch.isfinite(sums).tolist()) if not finite]
    if bad:
        raise not_finite(f"the logits of {len(bad)} of {len(sums)} rows (from 0: {', '.join(bad[:8])}) are", engine)
