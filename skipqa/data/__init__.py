"""Data that is fetched or built here, and what of it is held out of training."""
