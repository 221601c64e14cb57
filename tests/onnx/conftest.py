"""Small exported models, shared with the tests of recipes."""

from tests.quantize.conftest import exported, exported_gpt2, onnx_cache  # noqa: F401 - fixtures
