"""Promote a tracked run: register how it ran the model, so that MLflow serves it by a name and an alias."""

from __future__ import annotations

import dataclasses
import os

from llmtrack.errors import UsageError
from llmtrack.run.reproduce import variant_of
from llmtrack.spec.pointer import Pointer
from llmtrack.tracked.run import MODEL_DIGESTS
from llmtrack.tracking.read.query import runs_of_id
from llmtrack.tracking.write.models import Version, name_and_alias, register


def promote(run_id: str, target: str, tracking_uri: str | None = None) -> Version:
    """Register the way that a run measured.

    Args:
        run_id: the run of one scenario; its first 8 characters do.
        target: `NAME@alias`.
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.

    Raises:
        UsageError: there is no such run, or no such name or alias; or the run measured no way to run a model.
        LlmtrackError: its backend or recipe no longer exists.
        TrackingError: the store cannot be used.
    """
    name, alias = name_and_alias(target)
    matches = runs_of_id(run_id, tracking_uri)
    if len(matches) != 1:
        reason = f"names {len(matches)} runs: name one by its id" if matches else "is not the run of a scenario"
        raise UsageError(f"{run_id!r} {reason} (`llmtrack runs` lists them)")
    (run,) = matches
    variant = variant_of(run)
    if os.path.isdir(variant.model):
        variant = dataclasses.replace(variant, model=os.path.abspath(variant.model))
    digests = {key: text for key in MODEL_DIGESTS if (text := run.text(f"env.{key}"))}
    return register(run, Pointer(variant, digests), name, alias, tracking_uri)
