"""Look at the logits behind what was generated: a model that computes no numbers has no speed worth a row in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmtrack.engine import Engine, GenerateRequest
from llmtrack.errors import ScenarioError, in_words

NON_FINITE: Final = "non_finite"
"""Kind of the failure."""

PROBE_TOKENS = 64
"""Tokens of a call's first row whose logits are looked at one by one."""


def check_finite(
    engine: Engine, requests: Sequence[GenerateRequest], new_ids: Sequence[Sequence[int]]
) -> tuple[str, ...]:
    """Look at the logits that the tokens of an output were chosen from, outside of anything that is timed.

    They are read through `score`, which never holds those of a whole batch: the log-likelihood of the most likely
    token is finite if and only if its distribution is. A single -inf, as of a masked entry of the vocabulary, is no
    fault. The logits inside the prompt, from which nothing was chosen, are looked at in the first row only.

    Args:
        engine: the engine that generated.
        requests: its calls.
        new_ids: what they generated, per row over all calls.

    Returns:
        Findings in words: that the logits could not be looked at.

    Raises:
        ScenarioError: a distribution is not finite; of kind `non_finite`.
    """
    try:
        first = 0
        for request in requests:
            _check_prompt(engine, request.prompt_ids[0][:PROBE_TOKENS])
            _check_output(engine, request, new_ids[first : first + len(request.prompt_ids)])
            first += len(request.prompt_ids)
    except NotImplementedError:
        return ("this engine does not show its logits: whether they are finite is not known",)
    except Exception as error:
        if isinstance(error, ScenarioError) and error.kind == NON_FINITE:
            raise
        # The look is beside the measurement: what it cannot tell does not end it.
        return (f"whether the logits are finite is not known: {in_words(error)}",)
    return ()


def not_finite(what: str, engine: Engine) -> ScenarioError:
    """Return the error that says that a model computes something that is no number."""
    label = engine.info.dtype_label
    # float16 alone has so small a range that sound weights can leave it.
    remedy = "use dtype=float32 or bfloat16, or " if "float16" in label.replace("bfloat16", "") else ""
    return ScenarioError(f"{what} not finite in {label}: {remedy}look for damaged weights", kind=NON_FINITE)


def _check_prompt(engine: Engine, ids: Sequence[int]) -> None:
    import torch

    if not torch.isfinite(torch.logsumexp(engine.next_token_logits(ids).float(), dim=-1)).all():
        raise not_finite("the logits of the prompt are", engine)


def _check_output(engine: Engine, request: GenerateRequest, output: Sequence[Sequence[int]]) -> None:
    import torch

    from llmtrack.tensors.padding import pad_rows

    new, new_mask = pad_rows(output, 0, "right")
    if request.padding_side == "left":  # the pads stand where they stood while generating
        prompt, mask = pad_rows(request.prompt_ids, 0, "left", request.padded_length)
        ids, mask = torch.cat([prompt, new], dim=1), torch.cat([mask, new_mask], dim=1)
        scored = torch.cat([torch.zeros_like(prompt), new_mask], dim=1).bool()
    else:
        pairs = list(zip(request.prompt_ids, output, strict=True))
        ids, mask = pad_rows([[*row, *more] for row, more in pairs], 0, "right")
        scored = pad_rows([[0] * len(row) + [1] * len(more) for row, more in pairs], 0, "right")[0].bool()
    sums, _ = engine.score(ids, mask, scored)
    bad = [str(row) for row, finite in enumerate(torch.isfinite(sums).tolist()) if not finite]
    if bad:
        which = f"{len(bad)} of {len(sums)} rows (from 0: {', '.join(bad[:8])})"
        raise not_finite(f"the logits of {which} are", engine)
