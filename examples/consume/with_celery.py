"""Consume in series with Celery: docs/how-to/use-from.md."""

from celery import Celery
from celery.exceptions import Reject
from kombu import Queue
from shop import charge

app = Celery("shop", broker="amqp://billing:PASSWORD@localhost:5673/shop")
app.conf.task_queues = [Queue("orders", no_declare=True)]
app.conf.worker_prefetch_multiplier = 1  # no task waits in the worker
app.conf.worker_enable_prefetch_count_reduction = False  # after a lost connection two threads would read one socket
app.conf.worker_enable_remote_control = False  # it declares queues
app.conf.broker_transport_options = {"confirm_publish": True}  # or tasks sent right before a program ends are lost


@app.task(acks_late=True)
def pay(customer, order):
    try:
        charge(customer, order)
    except Exception as error:
        raise Reject(error, requeue=True) from error
