"""trunq in Django: "trunq.django" in INSTALLED_APPS.

`manage.py migrate` puts trunq into the database, `manage.py trunq_worker module:name` runs a worker, and the
admin shows queues and messages. `connection="default"` has a call of a client join `transaction.atomic()`.
"""

from __future__ import annotations

from trunq.django.client import Client
from trunq.django.worker import Worker, dsn

__all__ = ["Client", "Worker", "dsn"]
