"""The nights of the pipeline as an Airflow 3 DAG: put this file into the folder of DAGs.

Its paths may be others. Findings (1) and faults (2) fail the task, so Airflow's own alerts tell of them; a day without
records (3) is skipped.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "ringproxy_night",
    schedule="30 1 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
):
    BashOperator(
        task_id="day",
        # The day is the run's and not the clock's: a run that is cleared does its own day again.
        bash_command="exec /opt/ringproxy-pipeline/bin/python -m pipeline day"
        " --journal /var/lib/ringproxy/journal"
        " --out /var/lib/ringproxy-night"
        " --day {{ macros.ds_add(ds, -1) }}",
        skip_on_exit_code=3,
    )
