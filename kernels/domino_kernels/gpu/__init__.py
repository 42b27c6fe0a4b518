"""The target's step on a GPU: Triton kernels, one op a file, each with its torch reference.

A linear layer leaves its result in parts [S, n, N]: sums over S pieces of the input's width, which
the next kernel adds in their order. `PARTS` is S there.
"""
