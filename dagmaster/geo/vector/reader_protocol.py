"""The names that the reader and its process share."""

from typing import Final

# In the metadata of the schema: what the file says about the layer, as JSON.
LAYER_KEY: Final = b"dagmaster:layer"
# The exit code of a process that has refused a file, with the reason on its standard error.
REFUSED: Final = 3
