"""Rasters, layers, hexagons and their catalogue entries as functions of files. Needs the extra `geo`; knows no jobs."""

import os

# Handlers' processes are forked from one that has loaded this, and threads do not survive a fork. The linear algebra of
# numpy, which nothing here uses, would start some on import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The same of numexpr, which comes with pandas, which comes with pyogrio where they are installed.
os.environ.setdefault("NUMEXPR_NUM_THREADS", "1")
