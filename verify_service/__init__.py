"""The verify service: target model, paged KV, continuous batching, acceptance."""
