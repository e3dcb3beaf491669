"""Writes the pages of docs/reference/ that follow from the code: one module for each page."""
