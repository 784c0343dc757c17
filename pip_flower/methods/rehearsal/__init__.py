"""What methods with a memory of old classes share: exemplars, a teacher, distillation, batches of old and
new."""
