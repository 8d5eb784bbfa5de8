"""Models in ONNX format that compute rasters from rasters; needs the extra `ml`."""

import os

# Read when onnxruntime is imported: its telemetry would start a thread, and processes are forked from this one.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
