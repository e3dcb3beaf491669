"""Streams of pods: lines of logs, commands in containers, forwarded ports. See `kplane.provider.client.pods`."""
