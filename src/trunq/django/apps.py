"""The app, for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class TrunqConfig(AppConfig):
    """trunq in Django."""

    name = "trunq.django"
    label = "trunq"
    verbose_name = "trunq"
    default_auto_field = "django.db.models.BigAutoField"
