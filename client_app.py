"""Flower ClientApp: replies to train, evaluate and query messages for this node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pip_flower.client.warm.caller import reply

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    return Message(reply("train", message.content, context), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test samples."""
    return Message(reply("evaluate", message.content, context), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who this node is."""
    return Message(reply("query", message.content, context), reply_to=message)
