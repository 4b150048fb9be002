"""The paper's sparsity bound, and whether its assumptions and predictions hold on real results."""
