"""Decoding with a Llama: greedy, quoting, scoring candidate answers, CUDA graphs."""
