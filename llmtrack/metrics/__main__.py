"""Generate docs/metrics.md: python -m llmtrack.metrics > docs/metrics.md."""

from llmtrack.metrics.page import page

print(page(), end="")
