"""The identity of a process, which no two processes share."""

import subprocess
import sys

from proxy.process.identity import JOB, SIDECAR_ID, of_job, of_sidecar, process_id

ASK = "import os; from proxy.process.identity import process_id; {}; os.write(1, (process_id() + chr(10)).encode())"


def test_an_id_stays_and_is_in_the_properties_of_a_sidecar_only() -> None:
    assert process_id() == process_id() == of_sidecar()[SIDECAR_ID]
    assert len(bytes.fromhex(process_id())) == 16
    assert SIDECAR_ID not in of_job()
    assert JOB not in of_sidecar()


def test_each_process_has_its_own_id_also_one_that_was_forked() -> None:
    ids = [
        *subprocess.check_output([sys.executable, "-c", ASK.format("pass")], text=True).split(),
        *subprocess.check_output([sys.executable, "-c", ASK.format("os.fork()")], text=True).split(),
    ]

    assert len({process_id(), *ids}) == 4
