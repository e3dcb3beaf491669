"""Who works on which cluster, where several processes run the same manager."""
