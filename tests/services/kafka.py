"""Session-scoped Kafka."""
