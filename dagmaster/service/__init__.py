"""The operations: submit, control, schedule. Web, command line, Python API and tests call them.

Each operation is a function of a `ServiceContext`: a connection and its actor. `Service` is the same interface over the
database and over HTTP.
"""
