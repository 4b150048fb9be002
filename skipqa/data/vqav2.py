"""VQAv2: perceptual questions on COCO photos, where knowledge should cost nothing."""

from skipqa.data.coco_vqa import CocoVqa

VQAV2 = CocoVqa(name="vqav2", prefix="v2_")
