"""What to fix first: detections over the analyzed ranks, ordered by what they cost."""
