"""The networks in plain torch: layers, weight names of the published checkpoints, FLOPs."""
