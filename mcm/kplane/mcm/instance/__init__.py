"""The life of one instance."""
