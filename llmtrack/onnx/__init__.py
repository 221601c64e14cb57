"""The ONNX decoder: its session, what its graph is changed to, export, and the check that it says what PyTorch says."""
