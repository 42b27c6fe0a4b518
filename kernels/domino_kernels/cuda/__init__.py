"""CUDA C of the kernels that keep weights on the chip over many steps, and what compiles it."""
