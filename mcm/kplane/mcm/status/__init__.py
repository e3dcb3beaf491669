"""What mcm reports: conditions, Events, HTTP."""
