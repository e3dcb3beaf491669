"""Add-ons: objects that the class of a control plane adds inside it, besides the objects that kplane needs."""
