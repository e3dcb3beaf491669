"""Components as processes of this machine."""
