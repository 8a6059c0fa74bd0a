"""The CUDA engine: our own kernels, compiled by NVRTC, launched through one gate, replayed as one graph a step."""
