"""Between stable-baselines3 and our policies: models, zips, spaces, vector environments."""
