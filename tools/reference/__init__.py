"""Generates the pages of docs/reference/ from the code. Each module generates a page or a group of pages."""
