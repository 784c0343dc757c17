"""Images, their split into tasks, their partition over clients, and the views a ViT sees."""
