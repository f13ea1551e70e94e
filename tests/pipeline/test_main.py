"""`python -m pipeline` before any job has begun."""

import subprocess
import sys

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from pipeline.__main__ import main
sys.exit(main(["usage", "--journal", "j", "--out", "o"]))
"""


def test_without_spark_one_line_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pipeline usage: the package 'pyspark")
    assert done.stderr.endswith("see docs/how-to/find-hot-keys.md, Install\n")
    assert done.stderr.count("\n") == 1
