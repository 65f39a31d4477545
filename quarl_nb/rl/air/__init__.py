"""The UAV navigation of Table 6: its world, environments, pictures and curriculum."""
