"""Transactions of another library, in which a worker runs handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

from trunq.connection.bridge import Rows
from trunq.wire.call import Call


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction.

    `given` is what the handler gets. `settle` sends what the library holds back, and refuses a transaction
    that ended; it returns what executes the ack. `commit_with`, where there is one, has a statement executed
    in the round trip of the commit, which is not executed when the statement fails.
    """

    given: Any
    settle: Callable[[], Callable[[Call], Rows]]
    commit_with: Callable[[bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class AsyncTransaction:
    """The same in an event loop."""

    given: Any
    settle: Callable[[], Awaitable[Callable[[Call], Awaitable[Rows]]]]
    commit_with: Callable[[bytes], None] | None = None


class Library(ABC):
    """Whose transactions a worker's handlers run in; it opens, commits and rolls them back."""

    given: str
    """What a handler gets, for errors."""

    needs_parameter: bool = True
    """Whether what a handler does is in the transaction only through its parameter."""

    @abstractmethod
    def takes(self, name: str, hint: Any) -> bool:
        """Whether a parameter of a handler, by its name and annotation, is for a transaction of this
        library.
        """

    @abstractmethod
    def check_colour(self, is_async: bool) -> None:
        """Raise TypeError where handlers of this colour can have no transaction."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction, committed at the end of the block, or rolled back when that raises."""

    @abstractmethod
    def async_transaction(self) -> AbstractAsyncContextManager[AsyncTransaction]:
        """The same in an event loop."""

    @abstractmethod
    def is_away(self, error: Exception) -> bool:
        """Whether an error at the beginning says that the database cannot be reached now."""

    @abstractmethod
    def sqlstate(self, error: Exception) -> str | None:
        """The SQLSTATE of an error that the library raised."""
