"""From launch to sign-off: plans, batches, approvals, publication."""
