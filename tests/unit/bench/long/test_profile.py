"""A report of perf is read, and shared out by whose code it is."""

import pytest

from bench import BenchError
from bench.long.profile import by_owner, most, read

REPORT = """
# Samples: 8K of event 'cpu-clock'
    50.00%  [kernel.kallsyms]                                     [k] finish_task_switch.isra.0
    20.00%  libpython3.11.so.1.0                                  [.] _PyEval_EvalFrameDefault
    15.00%  ringproxy__mypyc.cpython-311-x86_64-linux-gnu.so      [.] CPyDef_hashing___index_at
    10.00%  [kernel.kallsyms]                                     [k] _raw_spin_unlock
     4.00%  loop.cpython-311-x86_64-linux-gnu.so                  [.] __pyx_f_6uvloop_4loop (inlined)
     1.00%  mmh3.cpython-311-x86_64-linux-gnu.so                  [.] 0x0000000000001234
"""


def test_shares_are_of_what_ran() -> None:
    samples = read(REPORT)
    assert most(samples)[:1] == [(("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault"), 40.0)]
    assert by_owner(samples) == {
        "the kernel": 20.0,
        "HAProxy": 0.0,
        "the Python interpreter": 40.0,
        "this project, compiled": 30.0,
        "uvloop": 8.0,
        "aiohttp's parser and writer": 0.0,
        "the C library": 0.0,
        "the rest": 2.0,
    }


def test_a_report_without_samples_is_no_profile() -> None:
    with pytest.raises(BenchError, match="no samples"):
        read("# no samples")
