"""Extensions of asyncio: backoff, cancellation, restarts of tasks, bounded concurrency."""
