"""Starting Spark on this machine: Java, the Python of its workers, and a session that knows trunq."""
