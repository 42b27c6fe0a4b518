"""A service that only does what its first flag says; run as `python -m tests.cli.fake_service`."""

import json
import signal
import sys
import time

READY = {"event": "ready", "service": "fake", "address": "127.0.0.1:1", "pid": 0}


def main(behaviour: str) -> int:
    print("loading", file=sys.stderr, flush=True)
    if behaviour == "fails":
        print("fake: target: no such folder", file=sys.stderr)
        return 1
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps(READY), flush=True)
    if behaviour == "dies":
        sys.stdin.read()  # /dev/null: ends at once
        return 3
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
