"""Another checkpoint for a running service: a folder in, a checked successor of what is loaded out.

Nothing of the running service changes until all of it is read and checked. Next: the servicer.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from domino_serve.v1 import draft_pb2
from draft_service.load import Loaded, Weights, read_weights
from serving.checkpoint import Checkpoint
from serving.draft_config import DraftConfig
from serving.errors import BadRequest, CheckpointError, StartError
from serving.fingerprint import draft_fingerprint
from serving.tensors import to_message

PART_BYTES = 4 << 20  # of one message of a projection
FREE = ("warnings", "format")  # what two checkpoints of one shape may differ in


def read_update(loaded: Loaded, folder: Path) -> Weights:
    """The weights in `folder`; raises BadRequest naming what cannot be served in their place.

    Read by a thread of its own: OpenMP keeps workers for every thread that computes, and those of a
    handler's would stay.
    """
    if loaded.ranks.size > 1:
        raise BadRequest(
            "folder",
            f"{loaded.ranks.size} processes hold the draft, which cannot take another one while "
            "they serve; restart them",
        )
    try:
        with ThreadPoolExecutor(1) as pool:
            weights = pool.submit(read_weights, loaded.config, folder, loaded.weights).result()
        refuse_broken(weights.checkpoint)
    except (StartError, OSError, ValueError) as error:  # a name may be too long, or hold a NUL
        raise BadRequest("folder", f"{error!s:.500}") from error
    refuse_other_shape(loaded.weights.draft, weights.draft)
    return weights


def swap(loaded: Loaded, weights: Weights) -> Loaded:
    """Serves the weights from the next step on; what to answer handshakes with from here on."""
    context_id = loaded.engine.replace(weights.network)
    hello = draft_pb2.HandshakeResponse()
    hello.CopyFrom(loaded.hello)
    hello.draft.CopyFrom(draft_fingerprint(weights.checkpoint, weights.draft))
    hello.context_id = context_id
    served = (*loaded.served, loaded.hello.draft.content_hash)
    return dataclasses.replace(loaded, hello=hello, weights=weights, served=served)


def refuse_other_shape(old: DraftConfig, new: DraftConfig) -> None:
    """Sessions, KV pages and proposals of verify services are made for the old shape."""
    for spec in dataclasses.fields(DraftConfig):
        before, after = getattr(old, spec.name), getattr(new, spec.name)
        if spec.name not in FREE and before != after:
            raise BadRequest(
                "folder",
                f"{spec.name} is {after}, the loaded draft's is {before}; restart the services to "
                "serve a draft of another shape",
            )


def refuse_broken(checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for weights that are no numbers: a diverged training."""
    from safetensors import safe_open

    for name, stored in checkpoint.tensors.items():
        with safe_open(stored.file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(stored.name)
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f"{checkpoint.path}: tensor {name} has NaN or infinite weights")


def projection_parts(loaded: Loaded) -> Iterator[draft_pb2.GetProjectionResponse]:
    """The loaded draft's projection as messages far below gRPC's limit."""
    weights = loaded.weights
    yield draft_pb2.GetProjectionResponse(draft=loaded.hello.draft)
    yield draft_pb2.GetProjectionResponse(norm=to_message(weights.norm[None]))
    rows = max(1, PART_BYTES // (weights.fc.shape[1] * weights.fc.itemsize))
    for part in torch.split(weights.fc, rows):
        yield draft_pb2.GetProjectionResponse(fc_rows=to_message(part))
