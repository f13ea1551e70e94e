"""Write the dashboards into deploy/grafana."""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from testbed.dashboards import exchange, fleet, group

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = {"fleet": fleet.dashboard, "exchange": exchange.dashboard, "group": group.dashboard}


def texts() -> dict[str, str]:
    """Return the text of each dashboard's file."""
    return {
        f"{name}.json": json.dumps(make(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
        for name, make in DASHBOARDS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
