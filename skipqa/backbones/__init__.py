"""The pretrained networks behind one interface, `backbone.Backbone`.

`networks/` has the networks in plain torch, `weights/` reads and converts published weights,
`generation/` decodes and scores answers, `presets/` puts networks together into backbones. What
every preset has in common is here: the text encoder, the segmenter, the table of concepts.
"""
