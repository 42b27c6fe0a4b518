"""`python -m benchmarks.random_pair FOLDER`: a target and its draft with RANDOM weights, to time.

FOLDER/target and FOLDER/draft have Qwen3-8B's and Qwen3-8B-Domino's shapes in bfloat16, and a
tokenizer whose token n is the word "wn". What they say means nothing.
"""

import argparse
import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from torch import Tensor

from serving.checkpoint import Checkpoint
from serving.draft_format import load_draft_config
from serving.draft_tensors import draft_tensors
from serving.target_config import load_target_config, target_tensors
from serving.tensor_names import Shape

FILE_BYTES = 2 << 30
LAYERS = {"target": 36, "draft": 5}
QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
DOMINO: dict[str, Any] = {
    "target_layer_ids": [1, 9, 17, 25, 33],
    "mask_token_id": 151669,
    "projector_type": "domino",
    "gru_hidden_dim": 1024,
    "emb_dim": 256,
    "pure_draft_prefix_len": 1,
    "shift_label": True,
}


def write_pair(folder: Path, shape: Mapping[str, Any], domino: Mapping[str, Any]) -> None:
    """Both checkpoints: `shape` is config.json's of both but for the layers, `domino` the draft's
    `dflash_config`; its block has 16 positions."""
    about = {"num_hidden_layers": LAYERS["target"], **shape}
    target = folder / "target"
    write_config(target, about)
    words = {f"w{i}": i for i in range(about["vocab_size"])}
    model = tokenizers.models.WordLevel(words, unk_token="w0")
    tokenizers.Tokenizer(model).save(str(target / "tokenizer.json"))
    config = load_target_config(Checkpoint(target, weights=False))
    write_tensors(target, target_tensors(config))
    draft = folder / "draft"
    block = {"block_size": 16, "num_target_layers": config.num_layers, "dflash_config": domino}
    write_config(draft, {**about, "num_hidden_layers": LAYERS["draft"], **block})
    read = load_draft_config(Checkpoint(draft, weights=False), config, [target])
    write_tensors(draft, draft_tensors(read))


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def write_tensors(folder: Path, shapes: Mapping[str, Shape]) -> None:
    """Files of about FILE_BYTES, a few at a time."""
    files: list[dict[str, Shape]] = [{}]
    size = 0
    for name, shape in shapes.items():
        if size > FILE_BYTES:
            files.append({})
            size = 0
        files[-1][name] = shape
        size += 2 * torch.Size(shape).numel()

    def write(number: int) -> None:
        tensors = {name: drawn(name, shape) for name, shape in files[number].items()}
        save_file(tensors, folder / f"model-{number + 1:05}-of-{len(files):05}.safetensors")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(len(files))))


def drawn(name: str, shape: Shape) -> Tensor:
    """Norms around 1, everything else so that rows keep their size."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = torch.Generator(device).manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=rng, device=device, dtype=torch.bfloat16)
    return (1 + 0.1 * values if len(shape) == 1 else values * shape[-1] ** -0.5).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    write_pair(folder, QWEN3_8B, DOMINO)
    print(f"{folder}/target and {folder}/draft: RANDOM weights")


if __name__ == "__main__":
    main()
