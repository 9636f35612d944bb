"""Queues and messages in the admin, to look at: what `trunq.status`, `list_messages` and `show_message` tell.

Staff with the permission `trunq.view_queue` see them. Nothing here changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, get_args

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path

from trunq import Client
from trunq.django.models import Queue
from trunq.errors import TrunqError
from trunq.wire.scalar import ids_told
from trunq.word import State

PAGE: Final = 100
"""Messages on a page."""

STATES: Final = get_args(State)


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """Queues, their messages, and one message with its attempts."""

    using = "default"
    """The database of Django's settings in which trunq is."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def get_urls(self) -> list[Any]:
        """The three pages."""
        pages: dict[str, tuple[Callable[..., HttpResponse], str]] = {
            "": (self.queues, "trunq_queue_changelist"),
            "<slug:queue>/<slug:subscription>/": (self.messages, "trunq_queue_messages"),
            "<slug:queue>/<slug:subscription>/<int:id>/": (self.message, "trunq_queue_message"),
        }
        return [
            path(where, self.admin_site.admin_view(self._for_viewers(view)), name=name)
            for where, (view, name) in pages.items()
        ]

    def _for_viewers(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Checks the permission before it looks anything up: 403 does not tell whether a queue exists."""

        @wraps(view)
        def look(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            return view(request, *arguments, **named)

        return look

    def queues(self, request: HttpRequest) -> HttpResponse:
        """Each subscription with its counts."""
        return self._page(
            request, "queues", {"title": "Queues", "rows": _client().status(connection=self.using)}
        )

    def messages(self, request: HttpRequest, queue: str, subscription: str) -> HttpResponse:
        """Messages of a subscription, the newest first, by state, kind and key."""
        asked = {name: request.GET[name] for name in ("state", "kind", "key") if request.GET.get(name)}
        before = request.GET.get("before", "")
        page: dict[str, Any] = {"limit": PAGE, "before": next(iter(ids_told(before)), None)}
        found = self._ask("list_messages", queue, subscription, **asked, **page)
        more = request.GET.copy()
        if len(found) == PAGE:
            more["before"] = str(found[-1].id)
        return self._page(
            request,
            "messages",
            {
                "title": f"{queue} / {subscription}",
                "queue": queue,
                "subscription": subscription,
                "rows": found,
                "asked": asked,
                "states": STATES,
                "more": more.urlencode() if len(found) == PAGE else None,
            },
        )

    def message(self, request: HttpRequest, queue: str, subscription: str, id: int) -> HttpResponse:
        """A message, and each of its attempts."""
        found = [each for each in self._ask("show_message", queue, id) if each.subscription == subscription]
        if not found:
            raise Http404(f"{queue} has no message {id} for {subscription}")
        rows = {
            name: json.dumps(value, indent=2, ensure_ascii=False) if isinstance(value, dict | list) else value
            for name, value in found[0]._asdict().items()
        }
        return self._page(request, "message", {"title": f"{queue} {id}", "queue": queue, "rows": rows})

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        try:
            return getattr(_client(), method)(*arguments, **named, connection=self.using)
        except TrunqError as error:
            raise Http404(error.message) from error

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, f"trunq/{name}.html", context)


def _client() -> Client:
    """A client that opens no connection: each call is given one."""
    return Client("")
