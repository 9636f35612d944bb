"""manage.py trunq_worker module:name"""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from pkgutil import resolve_name
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from trunq import Worker


class Command(BaseCommand):
    """Run a worker of your code until SIGTERM or Ctrl-C."""

    help = "Run a worker: it leases messages, calls your handlers and answers for them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        parser.add_argument("worker", metavar="MODULE:NAME", help="where it is, such as shop.tasks:worker")
        parser.add_argument("--concurrency", type=int, help="how many handlers run at a time")
        parser.add_argument("--name", help="a name only one process has at a time")
        parser.add_argument("--until-empty", action="store_true", help="end when nothing waits or runs")
        parser.add_argument("--until-idle", action="store_true", help="and nothing is delayed")

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it."""
        found = self._find(options["worker"])
        for attribute in ("concurrency", "name"):
            if options[attribute] is not None:
                setattr(found, attribute, options[attribute])
        if not logging.getLogger("trunq").hasHandlers():
            # Django's own LOGGING has a handler for its own lines alone.
            logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
            logging.getLogger("trunq").setLevel(logging.INFO)
        found.until_empty = found.until_empty or options["until_empty"]
        found.until_idle = found.until_idle or options["until_idle"]
        try:
            found.run()
        except ValueError as error:
            raise CommandError(f"{options['worker']} cannot run: {error}") from error

    def _find(self, where: str) -> Worker:
        try:
            found = resolve_name(where)
        except (ImportError, AttributeError, ValueError) as error:
            raise CommandError(f"there is no worker at {where}: {error}") from error
        if not isinstance(found, Worker):
            raise CommandError(f"{where} is no worker, but of {type(found).__name__}")
        return found
