"""llama.cpp: its library through llama-cpp-python, and conversion of model folders."""
