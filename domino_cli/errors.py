"""What a command raises when it cannot do its work; `__main__` prints the message and exits."""


class CommandError(Exception):
    """Something failed at run time: exit code 1. The message is one line with the remedy."""

    exit_code = 1


class UsageError(CommandError):
    """The user asked for something impossible: exit code 2. Names the field and the value."""

    exit_code = 2
