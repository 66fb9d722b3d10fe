"""Kafka: the only package that imports the client library. Nothing is imported here, so that importing is free."""
