"""Rasters, layers, hexagons and their catalogue entries as functions of files. Needs the extra `geo`; knows no jobs."""

import os

# Handler processes are forked from one that has loaded this, and threads do not survive a fork. numpy's linear algebra,
# which is not used here, would start some on import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Likewise numexpr, which comes with pandas and pyogrio if they are installed.
os.environ.setdefault("NUMEXPR_NUM_THREADS", "1")
