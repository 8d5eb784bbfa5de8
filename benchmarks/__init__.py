"""What we claim about speed, as ratios to a floor that is measured in the same run on the same server."""
