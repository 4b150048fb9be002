"""The stages of the data flow, one verb per file, in the order of the paper's figure.

A stage is built once, by `build(parts)`, with what it depends on, and called as
`stage(state, record) -> state`. Where training may replace a rule, the file has a small protocol
and its implementations; `build` chooses one. To try another pruner or verifier, implement that
protocol (or the whole stage) and use `pipeline.with_stages(prune=build_yours)`.
"""
