"""verdict.json: a job's answer for machines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def write_verdict(folder: Path, told: Mapping[str, object]) -> None:
    """Writes it into a job's folder of results, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".verdict.json.{os.getpid()}"
    unfinished.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(folder / "verdict.json")
