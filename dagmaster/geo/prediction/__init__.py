"""Models in ONNX format that compute rasters from rasters; needs the extra `ml`."""

import os

# Before onnxruntime is imported: it would start a thread and call its maker. Processes are forked from this one.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
