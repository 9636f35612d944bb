"""What of connections there is in both colours: written here once; `_sync` is generated from it by
`tools/unasync.py`.
"""
