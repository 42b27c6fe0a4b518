"""`python -m tests.chaos.pinging SECONDS MODULE ...`: a service that pings its peers so often.

Ours do each ten seconds; gRPC does it each second at most.
"""

import runpy
import sys

from serving import channel

if __name__ == "__main__":
    _, seconds, module, *sys.argv[1:] = sys.argv
    pings = dict(channel.keepalive(int(float(seconds) * 1000)))
    for name in ("CHANNEL_OPTIONS", "SERVER_OPTIONS"):
        setattr(channel, name, tuple((dict(getattr(channel, name)) | pings).items()))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
