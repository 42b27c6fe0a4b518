"""All three services as processes, on the recorded tiny models and a tokenizer of bytes."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tests.recorded_models import TARGET, VOCAB
from tests.services.processes import Process, running

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Whole:
    """Running services."""

    draft: Process
    verify: Process
    router: Process


@contextmanager
def whole(
    folder: Path,
    *,
    common: Options | None = None,
    draft: Options | None = None,
    verify: Options | None = None,
    router: Options | None = None,
) -> Iterator[Whole]:
    """`folder` takes the target's files; the rest are options of all and of each."""
    every = {"target": target_with_tokenizer(folder), **(common or {})}
    with ExitStack() as stack:
        drafting = stack.enter_context(running("draft_service", **every, **(draft or {})))
        verifying = stack.enter_context(running("verify_service", **every, **(verify or {})))
        routes = {"draft": drafting.address, "verify": verifying.address}
        not_its = {"threads": None, "page_size": None}
        routing = stack.enter_context(
            running("router", **{**every, **routes, **not_its, **(router or {})})
        )
        yield Whole(drafting, verifying, routing)


def target_with_tokenizer(folder: Path) -> Path:
    """The recorded target, whose ids are bytes here."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the the"], trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(TARGET / name)
    return folder
