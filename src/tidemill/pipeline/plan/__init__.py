"""Plan a pipeline: check its declarations and derive the stages that apply them to the store."""
