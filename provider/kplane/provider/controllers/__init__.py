"""Controllers: sources, queues, workers."""
