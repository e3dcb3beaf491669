"""Objects that the operator maintains inside each control plane."""
