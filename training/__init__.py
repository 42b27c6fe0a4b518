"""Training of DFlash and Domino drafts: text in, a checkpoint that the draft service serves out."""
