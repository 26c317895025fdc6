"""Workloads, one a file; see `hugewise.workload`."""
