"""Flower ClientApp: answers train, evaluate and query messages for this node."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pip_flower.client_adapter import answer_evaluate, answer_query, answer_train

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    return answer_train(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy on the client's own test samples."""
    return answer_evaluate(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who this node is."""
    return answer_query(message, context)
