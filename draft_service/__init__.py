"""The draft service: DFlash backbone, draft KV, Domino rollout."""
