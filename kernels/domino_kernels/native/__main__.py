"""`python -m domino_kernels.native`: builds the CPU kernels ahead of their first use."""

import logging
import sys

from domino_kernels.native.library import library

logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.exit(0 if library() else "no CPU kernels: services will compute with torch, slower")
