"""What a client and a worker share: messages, their answers, and the clients of both colours."""
