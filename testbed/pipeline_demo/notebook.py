"""Jobs in one Spark session, one after the other, as somebody runs them in a notebook: Java starts once for all.

Each line of the input is a job's arguments as JSON. The answer is a line of JSON: exit status, output and complaint.
"""

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout

from pipeline.__main__ import main
from pipeline.session import spark_session


def serve() -> None:
    """Run jobs until the input ends."""
    # Java and Python's workers write into the descriptor of the output, too: they get that of the complaints.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with spark_session("notebook"):
        for line in sys.stdin:
            told, complaint = io.StringIO(), io.StringIO()
            with redirect_stdout(told), redirect_stderr(complaint):
                status = main(json.loads(line))
            print(json.dumps([status, told.getvalue(), complaint.getvalue()]), file=answers)


if __name__ == "__main__":
    serve()
