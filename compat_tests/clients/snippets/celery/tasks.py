"""A Celery application that has its broker in Holdfast."""

from celery import Celery

app = Celery("tasks", broker="sqs://")
app.conf.update(
    broker_transport_options={
        "queue_name_prefix": "shop-",
        "visibility_timeout": 600,
        "wait_time_seconds": 20,
    },
    task_acks_late=True,
    task_default_queue="orders",
)


@app.task
def greet(name: str) -> str:
    """Return the greeting, which the worker logs."""
    return f"hello {name}"


if __name__ == "__main__":
    greet.delay("holdfast")
