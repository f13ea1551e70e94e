"""The Grafana dashboards in deploy/grafana: `make dashboards` writes them from these modules."""
