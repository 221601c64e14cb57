"""The ONNX decoder: session, graph transformations, export, and the parity check against PyTorch."""
