"""A run from its config: the target, the data and the state that is there in, a session out.

Whatever can be refused is, before features are computed. Next: training.session.
"""

import dataclasses
from collections.abc import Sequence

import torch

from serving.device import open_device
from serving.draft_config import DraftConfig
from serving.target_config import open_target
from serving.tensors import DTYPES
from training import checkpoint
from training.config import TrainConfig
from training.cross_entropy import Head
from training.dataset import Document, PackedRows, pack, read_dataset
from training.draft import DraftForward
from training.draft_json import draft_json, rope_fields, tapped_layers
from training.dspark_objective import DSparkObjective
from training.evaluate import read_held_out
from training.export import parse_draft
from training.features import Features
from training.mask import with_mask
from training.objective import Objective
from training.ranks import ONE_RANK, Ranks
from training.sanity import check_features
from training.session import Report, Session
from training.slots import ScoredSlots
from training.start import first_weights
from training.target import BatchTarget
from training.trainer import Trainer
from training.vocabulary import Vocabulary

FEATURES = "features"


def open_session(
    config: TrainConfig,
    report: Report,
    *,
    target: BatchTarget | None = None,
    documents: list[Document] | None = None,
    ranks: Ranks = ONE_RANK,
) -> Session:
    """A new run, or where the output folder has a tracker, the one to be resumed.

    target, documents: where they are in memory already. Raises TrainingError, OptionError or
    CheckpointError naming what does not fit.
    """
    dtype, device = DTYPES[config.dtype], open_device(config.device)
    if target is None:
        target = load_target(config, dtype, device)
    packed = pack(documents or read_dataset(config.data), config.row_length, config.seed)
    config = with_mask(config, packed.ids, target.config.vocab_size, ranks, device)
    made = draft_json(config, target.config, rope_fields(target.checkpoint))
    draft = parse_draft(None, made, target.config)
    vocab, file = target.config.vocab_size, config.held_out
    held_out = read_held_out(file, config.target, vocab) if file else ()
    start, saved = first_weights(config, draft, target), checkpoint.load(config.output)
    features = open_features(config, target, packed, draft.target_layer_ids, report, ranks)
    objective = make_objective(config, draft, target)
    if config.vocab_rows:
        part = Vocabulary.most_frequent(config.vocab_rows, packed, target.lm_head, ranks)
        objective = dataclasses.replace(objective, vocabulary=part)
    trainer = Trainer(config, objective, features, start, dtype, ranks)
    if saved is not None:
        trainer.resume(saved)
        report(f"resumed behind step {trainer.step}")
    if ranks.rank == 0:
        parse_draft(config.output, made, target.config)
    return Session(
        config=config, target=target, trainer=trainer, draft_json=made, held_out=held_out
    )


def open_features(
    config: TrainConfig,
    target: BatchTarget,
    packed: PackedRows,
    taps: Sequence[int],
    report: Report,
    ranks: Ranks,
) -> Features:
    """Where config.features says, compared with transformers; tells their size first."""
    keep = config.features == "memory"
    last = config.soft > 0 or config.head == "dspark"
    features = Features(target, packed, taps=config.taps, keep=keep, last=last)
    size = features.size
    kept = "kept" if keep else "not kept"
    report(f"{size.rows} rows of {size.tokens} tokens; features {size.bytes / 1e9:.1f} GB, {kept}")
    blocks = config.rows * config.anchors * config.accumulation * ranks.count
    report(f"a step learns {blocks} blocks of {config.block_size} at most")
    if config.features == "disk":
        file = features.on_disk(config.output / FEATURES)
        report(file.describe())
        for turn in (ranks.rank == 0, ranks.rank > 0):  # the first writes what the others read
            if turn:
                features.read_from(file)
            ranks.least(0)
    checked = check_features(features, target, config.target, taps)
    report(
        f"features are those of transformers (cosine at least {checked['least_cosine']:.4f}); "
        f"the target says {checked['argmax_agreement']:.0%} of a document's learnt tokens itself"
    )
    return features


def make_objective(config: TrainConfig, draft: DraftConfig, target: BatchTarget) -> Objective:
    """The loss that config.head asks for."""
    forward = DraftForward(draft, target.embedding, flex=config.flex)
    head = Head(lm_head=target.lm_head, chunk=config.chunk, soft=config.soft)
    slots = ScoredSlots(
        block_size=config.block_size,
        always=config.scored_slots or config.block_size,
        every=config.late_every,
    )
    if config.head == "dspark":
        return DSparkObjective(
            draft=forward,
            head=head,
            gamma=config.gamma,
            slots=slots,
            ce=config.ce,
            l1=config.l1,
            confidence=config.confidence,
        )
    return Objective(draft=forward, head=head, gamma=config.gamma, slots=slots)


def load_target(config: TrainConfig, dtype: torch.dtype, device: torch.device) -> BatchTarget:
    """The frozen target with the layers tapped that the draft will read."""
    layers = open_target(config.target)[1].num_layers
    taps = tapped_layers(config.taps, layers)
    return BatchTarget.load(config.target, taps=taps, dtype=dtype, device=device)
