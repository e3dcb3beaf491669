"""Life of one instance."""
