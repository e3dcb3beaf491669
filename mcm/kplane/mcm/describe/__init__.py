"""Describes the process of an instance: flags, files, profile."""
