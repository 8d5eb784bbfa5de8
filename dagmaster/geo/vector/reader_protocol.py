"""Constants that the reader and its process share."""

from typing import Final

# In the metadata of the schema: the file's description of the layer, as JSON.
LAYER_KEY: Final = b"dagmaster:layer"
# The exit code of a process that has rejected a file, with the reason on its standard error.
REFUSED: Final = 3
