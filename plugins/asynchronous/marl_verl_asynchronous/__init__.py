"""The schedule of `marl.schedule.mode=async`: sampling and learning overlap."""
