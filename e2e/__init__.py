"""The end-to-end suite: uses kplane as its users do, with real kubectl, on any backend. Imports no code of kplane."""
