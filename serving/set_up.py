"""What a service's options say of its whole process: logs, traces, TLS of its channels."""

import sys

from serving.channel import connect_with
from serving.log import set_up_logs
from serving.service_options import ServiceOptions
from serving.trace import set_up_traces

# An engine that comes back from its device would wait up to Python's 5 ms for a thread that serves
# a client, which is several steps.
SWITCH_S = 0.0002


def set_up(service: str, options: ServiceOptions) -> None:
    """Once, before anything else; raises OptionError."""
    sys.setswitchinterval(SWITCH_S)
    set_up_logs(service, options.log_format)
    set_up_traces(service, options.trace_endpoint)
    connect_with(options.outgoing())
