"""What the admin and its permissions are about. The tables are trunq's own, and no model leads to them."""

from __future__ import annotations

from django.db import models


class Queue(models.Model):
    """A queue, which who has the permission `trunq.view_queue` may look at in the admin."""

    name = models.TextField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)
