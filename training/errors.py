"""What training raises for a user to act on."""

from serving.errors import StartError


class TrainingError(StartError):
    """A config, a dataset or a checkpoint cannot be used; names the field and the remedy."""
