"""The same application for a queue that exists: it neither lists nor creates queues."""

import os
from urllib.parse import quote, urlsplit

from celery import Celery

key = quote(os.environ["AWS_ACCESS_KEY_ID"], safe="")
secret = quote(os.environ["AWS_SECRET_ACCESS_KEY"], safe="")
endpoint = os.environ["AWS_ENDPOINT_URL"]

app = Celery("predefined", broker=f"sqs://{key}:{secret}@{urlsplit(endpoint).netloc}")
app.conf.update(
    broker_transport_options={
        "is_secure": endpoint.startswith("https:"),
        "predefined_queues": {"orders": {"url": f"{endpoint}/000000000000/orders"}},
        "region": os.environ["AWS_REGION"],
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
