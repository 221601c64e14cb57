"""llama.cpp: its library through llama-cpp-python, and its files from ordinary model folders."""
