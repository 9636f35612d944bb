"""The dashboard: what is stuck, since when and why, and the acts that put it right, in a browser.

`app` is an ASGI application, for a server of its own (`trunq web`) or below a prefix of yours.
docs/operate/web.md tells the rest.
"""

from trunq.web.application import app as app
from trunq.web.guard import Person as Person
