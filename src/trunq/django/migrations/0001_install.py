"""Puts trunq into the database, or brings it up to date, in the transaction of the migration."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from trunq.install import install


def put(_apps: Any, editor: Any) -> None:
    """Install into a database of Postgres; others are passed over."""
    if editor.connection.vendor == "postgresql":
        editor.connection.ensure_connection()
        install(editor.connection.connection)


class Migration(migrations.Migration):
    """Undone, it leaves everything where it is: `trunq db uninstall` takes it out, with all messages."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Queue",
            fields=[("name", models.TextField(primary_key=True, serialize=False))],
            options={"managed": False, "default_permissions": ("view",)},
        ),
        migrations.RunPython(put, migrations.RunPython.noop, elidable=False),
    ]
