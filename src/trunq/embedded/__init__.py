"""A real Postgres of one's own, for trying and for tests.

server     starts one on a directory, or attaches to the one that runs there
watchdog   ends it with its last user, however that one ended
"""

from trunq.embedded.server import Embedded, majors, start

__all__ = ["Embedded", "majors", "start"]
