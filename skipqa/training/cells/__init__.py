"""What single tokens show, trained on things pasted at known places and on photos with boxes."""
