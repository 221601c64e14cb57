"""Data read by one decode step: the public name of `llmtrack.engines.torch.step`."""

from llmtrack.engines.torch.step import observe_step as observe_step
