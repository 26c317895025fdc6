"""Dask distributed as an engine: a scheduler beside the coordinator, and a quiet worker on each host.

    engine      what the coordinator holds: starts, supervises, calls
    scheduler   the coordinator's child
    worker      the process on a host, which `hugewise fleet work` becomes
    task        the one function that is ever carried
    settings    the quiet preset (quiet.yaml), TLS, and what may be unpickled

Dask places nothing here that may be placed twice: each host has a resource of its own, `host:NAME`, each task is one
order, retries are 0 and a task whose worker is gone is an error at once. A name of a worker would be resolved to the
address of the moment (dask/distributed issue 8600), and a host that returns would never be called again.
"""
