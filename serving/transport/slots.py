"""Which slots of a memory are free: filled for a message, free again once that was answered."""


class Slots:
    """Not safe from several threads."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._busy: dict[int, int] = {}  # by the message's number

    def take(self, sequence_number: int) -> int | None:
        """A slot for this message; None while all wait for answers."""
        if not self._free:
            return None
        self._busy[sequence_number] = self._free.pop()
        return self._busy[sequence_number]

    def answered(self, sequence_number: int) -> None:
        """The message was answered, and with it every one before."""
        for number in [n for n in self._busy if n <= sequence_number]:
            self._free.append(self._busy.pop(number))
