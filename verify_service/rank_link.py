"""What a verify group's first rank tells the others, over serving.rank_link."""

from domino_serve.v1 import rank_pb2
from serving import rank_link


class Followers(rank_link.Followers):
    """The first rank's side."""

    def send(self, step: rank_pb2.RankStep) -> None:
        """To all."""
        self.send_bytes(step.SerializeToString())


class Leader(rank_link.Leader):
    """Another rank's side."""

    def next(self) -> rank_pb2.RankStep:
        """Waits for a step, the last of which says that it is the end."""
        message = self.next_bytes()
        if message is None:
            return rank_pb2.RankStep(end=True)
        return rank_pb2.RankStep.FromString(message)
