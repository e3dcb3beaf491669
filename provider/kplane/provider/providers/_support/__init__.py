"""What several providers share."""
