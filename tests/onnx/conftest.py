"""The small exported models that recipes are tried on, too."""

from tests.quantize.conftest import _one_thread, exported, exported_gpt2, onnx_cache  # noqa: F401 - fixtures
