"""The commands, by what they are about. Each imports what it needs when it runs, so that `--help` stays fast."""
