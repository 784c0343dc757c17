"""Flower ClientApp: answers train, evaluate and query messages for this node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pip_flower.client.warm.caller import answer

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    return Message(answer("train", message.content, context), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test samples."""
    return Message(answer("evaluate", message.content, context), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who this node is."""
    return Message(answer("query", message.content, context), reply_to=message)
