"""Variables of the processes that hold one target together, as torchrun would set them."""

from serving.unused_port import unused_port


def rank_variables(count: int) -> list[dict[str, str]]:
    """One set a rank; the ranks of this machine meet on a port that is free now."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port())}
    shared = {"WORLD_SIZE": str(count), **place}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
