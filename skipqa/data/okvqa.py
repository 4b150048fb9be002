"""OK-VQA: 14,055 questions on COCO photos that need outside knowledge."""

from skipqa.data.coco_vqa import CocoVqa

OKVQA = CocoVqa(
    name="okvqa",
    prefix="",
    categories={
        "one": "Vehicles and Transportation",
        "two": "Brands, Companies and Products",
        "three": "Objects, Material and Clothing",
        "four": "Sports and Recreation",
        "five": "Cooking and Food",
        "six": "Geography, History, Language and Culture",
        "seven": "People and Everyday life",
        "eight": "Plants and Animals",
        "nine": "Science and Technology",
        "ten": "Weather and Climate",
        "other": "Other",
    },
)
