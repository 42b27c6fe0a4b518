"""Variables of the processes that hold one target together, as torchrun would set them."""

import socket


def rank_variables(count: int) -> list[dict[str, str]]:
    """One set a rank; the ranks of this machine meet on a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
