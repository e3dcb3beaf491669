"""Draws the pictures of the documents: diagrams from descriptions, and terminals from recordings of real runs."""
