"""What a command raises when it cannot do its work; `__main__` prints the message and exits."""

from collections.abc import Iterator
from contextlib import contextmanager

from serving.errors import StartError


class CommandError(Exception):
    """Something failed at run time: exit code 1. The message is one line with the remedy."""

    exit_code = 1


class UsageError(CommandError):
    """The user asked for something impossible: exit code 2. Names the field and the value."""

    exit_code = 2


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """What a command refuses, and files that cannot be read or written, as a CommandError."""
    try:
        yield
    except StartError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(str(error)) from error
