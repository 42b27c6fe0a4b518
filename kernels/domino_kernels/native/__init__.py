"""The CPU kernels in C: compiled once for this processor, called through ctypes."""
