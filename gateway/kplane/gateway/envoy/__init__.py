"""Envoy's configuration, as pure functions of routes: no file is read or written here."""
