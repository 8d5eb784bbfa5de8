"""The operations: submit, control, schedule. Web, command line, Python API and tests call them.

A verb is a function of a `ServiceContext`: a connection, and on whose behalf it is used. `Service` is the same over the
database and over HTTP.
"""
