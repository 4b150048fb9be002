"""The backbones, one per preset: which networks it uses and where their weights come from.

To add one, write a class that meets `backbones.backbone.Backbone` in a new module here.
`generation.mixin.GenerationMixin` gives it `generate` and `loglikelihood` for a Llama decoder, and
`clip_vicuna.ClipVicuna` everything but the weights of a CLIP with a Llama, and `pocket.Pocket` all
but another decoder (`desk.Desk`). Then have `build.build`
return it for its preset name, give the name its settings in `skipqa.config.PRESETS`, and its
costs in `skipqa.costs.presets`.
"""
