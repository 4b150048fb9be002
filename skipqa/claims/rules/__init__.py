"""How each of the paper's claims is decided: one file per family of claims."""
