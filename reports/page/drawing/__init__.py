"""Drawing tools of figures: canvas, panels, scales and styles."""
