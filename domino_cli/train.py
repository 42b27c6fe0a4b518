"""`domino-serve train CONFIG [key=value ...]`: trains a draft, or resumes it; looks at runs."""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from domino_cli.errors import UsageError, told_in_a_line
from domino_cli.models import resolve_model
from domino_cli.progress import Bar, say

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.ranks import Ranks

SMOKE = "smoke"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help=f"TOML or JSON file of settings; {SMOKE}: one random batch learnt by heart in 120 "
        "steps, which shows that masks and labels are right on this machine; plot RUN: curves of a "
        "run as one HTML page; verify RUN: whether its checkpoints are whole",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value | RUN", help="settings that win over the file"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "settings:\n" + "\n".join(settings())


def settings() -> list[str]:
    """One line a setting, for --help."""
    from dataclasses import MISSING, fields

    from training.config import TrainConfig

    lines = []
    for spec in fields(TrainConfig):
        default = "required" if spec.default is MISSING else f"default: {spec.default}"
        lines.append(f"  {spec.name:18} {spec.metadata['help']} ({default})")
    return lines


def run(args: argparse.Namespace) -> int:
    """Raises UsageError naming the line, field or setting that cannot be used."""
    with told_in_a_line():
        return execute(args)


def execute(args: argparse.Namespace) -> int:
    if args.config in OF_A_RUN:
        if len(args.overrides) != 1:
            raise UsageError(f"{args.config} needs the folder of one run, got {args.overrides}")
        return OF_A_RUN[args.config](Path(args.overrides[0]))
    if args.config == SMOKE:
        if args.overrides:
            raise UsageError(f"{SMOKE} takes no settings, got {args.overrides}")
        from training.smoke import smoke

        return 0 if smoke(print) else 1
    from serving.device import open_device
    from training.claim import claimed
    from training.config import load_config
    from training.opening import open_session
    from training.ranks import join, own_device
    from training.watch import METRICS

    config = load_config(Path(args.config), args.overrides)
    config = dataclasses.replace(
        config, target=resolve_model(str(config.target)), device=own_device(config.device)
    )
    ranks = join(open_device(config.device))
    if ranks.rank > 0:
        open_session(config, lambda line: None, ranks=ranks).run(lambda line: None)
        return 0
    with claimed(config.output, METRICS):
        folder = trained(config, ranks)
    say(f"exported to {folder}")
    print(folder)
    return 0


def trained(config: "TrainConfig", ranks: "Ranks") -> Path:
    """Shows how far it is; the export's folder."""
    from training.checkpoint import iterations
    from training.opening import open_session

    bar, session = Bar(config.steps), open_session(config, say, ranks=ranks)
    try:
        folder = session.run(say, tick=bar.draw)
    except KeyboardInterrupt:
        kept = max(iterations(config.output), default=0)
        say(f"stopped at step {session.trainer.step}; the same command goes on behind step {kept}")
        raise
    bar.clear()
    return folder


def plot(run: Path) -> int:
    from domino_cli.train_plot import plot

    print(plot(run))
    return 0


def verify(run: Path) -> int:
    """Prints each checkpoint's state; 1 when one behind the tracked one is damaged."""
    from training.checkpoint import WHOLE, verify

    found = verify(run)
    for name, state in found.items():
        print(f"{name} {state}")
    return 0 if set(found.values()) == {WHOLE} else 1


OF_A_RUN = {"plot": plot, "verify": verify}
