"""The score-function family, over any oracle that samples."""
