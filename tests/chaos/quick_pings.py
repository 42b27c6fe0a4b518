"""`python -m tests.chaos.quick_pings MODULE ...`: a service that pings its peers each second.

Ours do each ten seconds; gRPC does it no more often than this.
"""

import runpy
import sys
from typing import Final

from serving import channel

PING_S: Final = 1.0

if __name__ == "__main__":
    quick = dict(channel.keepalive(int(PING_S * 1000)))
    for name in ("CHANNEL_OPTIONS", "SERVER_OPTIONS"):
        setattr(channel, name, tuple((dict(getattr(channel, name)) | quick).items()))
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
