"""Plans, batches, approvals and publication of campaigns, from launch to sign-off."""
