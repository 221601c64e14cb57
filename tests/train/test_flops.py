"""FLOPs per token and peaks of devices."""

from llmtrack.train.flops import flops_per_token, peak_flops


def test_flops_per_token():
    # Two matrices of 10 x 10 in each of 3 layers, and attention over 8 tokens at width 10.
    assert flops_per_token(600, layers=3, width=10, length=8) == 6 * 600 + 12 * 3 * 10 * 8


def test_peaks_match_whole_words_of_the_device_name():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak_flops("NVIDIA L40S", "bfloat16") is None
    assert peak_flops("NVIDIA L4", "float32") == 30.3e12
