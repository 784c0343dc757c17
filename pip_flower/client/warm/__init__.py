"""The warm worker of a node.

Flower starts a new process for every message that a SuperNode receives. Importing torch and loading the
frozen ViT in each of them would take longer than the work itself, so that process (`caller`) only hands the
message over to a worker (`worker`) that lives as long as its SuperNode and keeps torch, the backbone, the
decoded data and the queries.
"""
