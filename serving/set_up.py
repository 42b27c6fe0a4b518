"""What a service's options say of its whole process: logs, traces, TLS of its channels."""

from serving.channel import connect_with
from serving.log import set_up_logs
from serving.service_options import ServiceOptions
from serving.trace import set_up_traces


def set_up(service: str, options: ServiceOptions) -> None:
    """Once, before anything else; raises OptionError."""
    set_up_logs(service, options.log_format)
    set_up_traces(service, options.trace_endpoint)
    connect_with(options.outgoing())
