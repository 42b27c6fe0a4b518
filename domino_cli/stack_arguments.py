"""The flags of every command that starts services, and the StackConfig they stand for."""

import argparse

from domino_cli.argument_types import candidates, chance, positive
from domino_cli.errors import UsageError
from domino_cli.models import DEFAULT_DRAFT, DEFAULT_TARGET, resolve_model
from domino_cli.progress import say
from domino_cli.stack_config import CONFIDENCE_THRESHOLD, IN_PROCESS, StackConfig, flag
from serving.contract import ModeName

MODES: tuple[ModeName, ...] = ("ar", "dflash", "domino", "dspark")
# Set by add_stack_arguments; None when the user did not give one.
STACK_FLAGS = (
    "target",
    "draft",
    "device",
    "draft_device",
    "data_plane",
    "dtype",
    "width",
    "width_policy",
    "threads",
    "max_sequences",
    "domino_candidates",
    "confidence_threshold",
    "use_generation_config",
    "deterministic",
    "tp",
    "draft_tp",
)
NEED_DRAFT = (
    "draft_device",
    "data_plane",
    "draft_tp",
    "width",
    "width_policy",
    "domino_candidates",
    "confidence_threshold",
)
DTYPES = {name: name for name in ("float32", "bfloat16", "float16")}
DTYPES |= {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """None stands for what is not given, so that each default is the services' own."""
    group = parser.add_argument_group("services")
    group.add_argument(
        "--target",
        metavar="MODEL",
        help=f"folder or name of the target model (default: {DEFAULT_TARGET})",
    )
    group.add_argument(
        "--draft",
        metavar="MODEL",
        help="folder or name of its draft, or 'none' "
        f"(default: {DEFAULT_DRAFT} for the default target, none for others)",
    )
    group.add_argument("--device", help="device of both models, such as cpu or cuda (default: cpu)")
    group.add_argument(
        "--draft-device", metavar="DEVICE", help="the draft's, if another, such as cuda:1"
    )
    group.add_argument(
        "--data-plane",
        choices=("auto", "inline", "shm", "cuda-ipc", "nccl", IN_PROCESS),
        help="how rows go from verify to draft: in shared or GPU memory, in messages, from GPU to "
        f"GPU by NCCL, or with both in one process (default: {IN_PROCESS} where one GPU has both "
        "models, which two processes would share by time slices; else auto: shared memory, GPU "
        "memory or messages)",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="DTYPE",
        help="float32, bfloat16, float16 (default: float32)",
    )
    group.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="positions verified in a step, 1 is plain decoding (default: the draft's block size "
        "B; B + 1 verifies a whole block, where the draft proposes one)",
    )
    group.add_argument(
        "--width-policy",
        choices=("fixed", "auto"),
        help="auto: each step as wide as pays, plain where nothing does, up to --width (default: "
        "auto without --width, else fixed)",
    )
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of each model (default: as many as cores)",
    )
    group.add_argument(
        "--max-sequences",
        type=positive,
        metavar="N",
        help="sequences verified at once (default: 32)",
    )
    group.add_argument(
        "--domino-candidates",
        type=candidates,
        metavar="K",
        help="candidate tokens of Domino's correction; 0 for the full vocabulary, certified for "
        "the same proposals from fewer bytes on a GPU (default: 0)",
    )
    group.add_argument(
        "--tp",
        type=positive,
        metavar="N",
        help="processes that hold the target together, each on a GPU of its own (default: 1)",
    )
    group.add_argument(
        "--draft-tp",
        type=positive,
        metavar="N",
        help="processes that hold the draft's head together, each on a GPU of its own (default: 1)",
    )
    group.add_argument(
        "--confidence-threshold",
        type=chance,
        metavar="P",
        help="on a CPU: a Domino block ends where the draft's own chance for it falls below P; 0: "
        f"never (default: {CONFIDENCE_THRESHOLD}; 0 where a --width is given)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        default=None,
        help="on a GPU: output has the same bits whatever else runs, speculative or plain; slower",
    )
    parser.set_defaults(use_generation_config=None)


def add_sampling_argument(parser: argparse.ArgumentParser) -> None:
    """For commands whose requests may be sampled; comparing modes needs greedy ones."""
    parser.add_argument(
        "--use-generation-config",
        action="store_true",
        default=None,
        help="a request's unset sampling fields are those of the target's generation_config.json",
    )


def stack_config(args: argparse.Namespace, *, show_logs: bool) -> StackConfig:
    """Resolves the models, pulling the embedded ones. Raises UsageError naming the value."""
    target = args.target or DEFAULT_TARGET
    draft = draft_name(target, args.draft)
    if draft is None and args.mode not in (None, "ar"):
        raise UsageError(f"--mode {args.mode} needs a draft: give --draft")
    if draft is None:
        _refuse_drafting(args)
    if args.data_plane == IN_PROCESS:
        _refuse_processes(args)
    target_folder = resolve_model(target)
    draft_folder = None if draft is None else resolve_model(draft)
    if draft is None:
        say(f"no draft for {target}: decoding is plain (give one with --draft)")
    return StackConfig(
        target=target_folder,
        draft=draft_folder,
        mode=args.mode,
        device=args.device,
        draft_device=args.draft_device,
        data_plane=args.data_plane or _plane_of_devices(args, draft),
        dtype=DTYPES[args.dtype] if args.dtype else None,
        width=args.width,
        width_policy=args.width_policy,
        threads=args.threads,
        max_sequences=args.max_sequences,
        domino_candidates=args.domino_candidates,
        confidence_threshold=_threshold(args, draft),
        use_generation_config=args.use_generation_config,
        deterministic=args.deterministic,
        tp=args.tp or 1,
        draft_tp=args.draft_tp or 1,
        show_logs=show_logs,
    )


def _plane_of_devices(args: argparse.Namespace, draft: str | None) -> str | None:
    """What is taken where no flag says it."""
    ranks = (args.tp or 1) * (args.draft_tp or 1)
    gpu = (args.device or "cpu").startswith("cuda")
    if draft is None or not gpu or ranks > 1 or args.draft_device not in (None, args.device):
        return None
    say(f"one GPU for both models: one process for both ({flag('data_plane')} auto for two)")
    return IN_PROCESS


def _threshold(args: argparse.Namespace, draft: str | None) -> float | None:
    """Of a draft on a CPU, where no flag says it; a width that is given means whole blocks."""
    on_cpu = (args.draft_device or args.device or "cpu") == "cpu"
    default = CONFIDENCE_THRESHOLD if draft and on_cpu and not args.width else None
    return default if args.confidence_threshold is None else args.confidence_threshold


def _refuse_drafting(args: argparse.Namespace) -> None:
    """What would be ignored without a draft; a width of 1 is what happens then."""
    for name in NEED_DRAFT:
        value = getattr(args, name)
        if value is not None and (name, value) != ("width", 1):
            raise UsageError(f"{flag(name)} {value} needs a draft: give --draft, or leave it out")


def _refuse_processes(args: argparse.Namespace) -> None:
    """What one process cannot have."""
    for name in ("draft_device", "tp", "draft_tp"):
        if (value := getattr(args, name)) is not None:
            remedy = f"needs processes of its own: leave out --data-plane {IN_PROCESS}"
            raise UsageError(f"{flag(name)} {value} {remedy}")


def draft_name(target: str, draft: str | None) -> str | None:
    """The draft that is meant: the one given, else the embedded one for the embedded target."""
    if draft is None:
        return DEFAULT_DRAFT if target == DEFAULT_TARGET else None
    return None if draft == "none" else draft
