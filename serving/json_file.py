"""A JSON file of a checkpoint in, its object out; errors name the file."""

import json
from pathlib import Path
from typing import Any

from serving.errors import CheckpointError


def read_json_object(file: Path) -> dict[str, Any]:
    """Raises CheckpointError when the file is missing, not JSON or not an object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent}: {file.name} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(found).__name__}")
    return found
