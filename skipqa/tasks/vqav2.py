"""VQAv2: perceptual questions on COCO photos, where knowledge should cost nothing."""

from skipqa.tasks.okvqa import CocoVqa

VQAV2 = CocoVqa(name="vqav2", title="VQAv2", prefix="v2_")
