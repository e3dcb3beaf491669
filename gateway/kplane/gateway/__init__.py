"""One address for all control planes: routes `/clusters/<clusterPath>/control-plane` to API servers, with Envoy."""
