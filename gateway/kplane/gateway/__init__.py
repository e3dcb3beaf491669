"""Gateway: one address for all control planes. Envoy routes `/clusters/<clusterPath>/control-plane` to API servers."""
