"""Into the log: publishing, unique keys, the gate, schedules."""
