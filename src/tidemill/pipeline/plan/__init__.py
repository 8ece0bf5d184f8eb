"""Plans a pipeline: checks its declarations and derives the stages that apply them to the store."""
