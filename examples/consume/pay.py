"""Send tasks, with the customer as key: docs/how-to/use-from.md."""

from with_celery import pay

for order in ("1", "2", "3"):
    for customer in ("customer-1", "customer-2"):
        pay.apply_async((customer, order), exchange="orders", routing_key=customer)
