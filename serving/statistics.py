"""What speculation did for a request, counted step by step, by verify and by a router that cuts."""

from domino_serve.v1 import speculation_pb2 as spec


def count_step(stats: spec.SpeculationStats, step: spec.StepStats, emitted: int) -> None:
    """Adds one verify step of which `emitted` tokens are kept, accepted ones first; or as many
    plain steps as there are tokens, one of each."""
    accepted = min(step.accepted_tokens, emitted)
    plain = 0 if step.proposed_tokens else emitted
    stats.verify_steps += plain or 1
    stats.plain_steps += plain
    stats.proposed_tokens += step.proposed_tokens
    stats.accepted_tokens += accepted
    stats.step_tokens += emitted
    histogram = stats.accepted_by_position
    histogram.extend([0] * (step.proposed_tokens - len(histogram)))
    for position in range(accepted):
        histogram[position] += 1


def add_statistics(total: spec.SpeculationStats, part: spec.SpeculationStats) -> None:
    """Adds another run of the same request; mode and width are the strongest there was."""
    histogram = total.accepted_by_position
    histogram.extend([0] * (len(part.accepted_by_position) - len(histogram)))
    for position, count in enumerate(part.accepted_by_position):
        histogram[position] += count
    total.mode, total.width = max(total.mode, part.mode), max(total.width, part.width)
    total.verify_steps += part.verify_steps
    total.plain_steps += part.plain_steps
    total.proposed_tokens += part.proposed_tokens
    total.accepted_tokens += part.accepted_tokens
    total.step_tokens += part.step_tokens
