"""A real RabbitMQ for the demo, the tests and the benchmarks, started and always stopped by the one who needs it."""


class SetupError(RuntimeError):
    """This machine cannot run what was asked for; the message says why and what to do about it."""
