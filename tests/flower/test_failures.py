"""Causes, from what Flower 1.39 and Ray 2.55 really say."""

import pytest

from pip_flower.flower.failures import raised_by_app, reason_of

APP = "/home/me/.flwr/apps/pip-flower"
LIBRARIES = "/opt/venv/lib/python3.11/site-packages"
ACTOR = "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=15245, ip=192.0.2.2, repr=<ClientAppActor>)"
IN_SIMULATION = f"""<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'{ACTOR}
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{LIBRARIES}/flwr/clientapp/client_app.py", line 161, in __call__
    return self._registered_funcs[full_name](message, context)
  File "{APP}/pip_flower/client/numpy_client.py", line 64, in fit
    exchange.fit(job)
  File "{LIBRARIES}/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)

The above exception was the direct cause of the following exception:

{ACTOR}
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{LIBRARIES}/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:\x20
Exception ClientAppException occurred. Message: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)'>"""
SERVER_LOG = f"""\x1b[92mINFO \x1b[0m:      Starting Flower Simulation
  File "{APP}/pip_flower/client/numpy_client.py", line 64, in fit
ValueError: of a client, long ago
\x1b[91mERROR \x1b[0m:     Simulation raised an exception
Traceback (most recent call last):
  File "{LIBRARIES}/flwr/simulation/app.py", line 337, in run_simulation_process
    simulation_result = _run_simulation(
                        ^^^^^^^^^^^^^^^^
  File "{APP}/pip_flower/rounds/loop.py", line 187, in _merge_training
    raise KeyError("general")
KeyError: 'general'
\x1b[91mERROR \x1b[0m:     Exit Code: 700

An unhandled exception occurred when running the simulation.
"""


def test_a_clients_exception_is_told_with_its_place_and_without_rays_preamble() -> None:
    said = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"
    place = " (pip_flower/client/numpy_client.py:64 in fit)"
    assert reason_of(IN_SIMULATION, 300) == said + place
    # What is too long loses its end, not its place.
    assert reason_of(IN_SIMULATION, len(place) + 20) == said[:20] + place


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            "<class 'builtins.ValueError'>:<'no images (own/method.py:3 in fit)'>",
            "ValueError: no images (own/method.py:3 in fit)",
        ),
        ("the disk is on fire", "the disk is on fire"),
        ("Error: Node Unavailable — the node\n failed", "Error: Node Unavailable — the node failed"),
    ],
)
def test_what_has_no_traceback_is_told_as_it_is(reply: str, told: str) -> None:
    assert reason_of(reply, 300) == told


def test_the_servers_exception_is_the_one_that_ended_the_run() -> None:
    raised = raised_by_app(SERVER_LOG)
    assert raised is not None
    assert raised.shown() == "KeyError: 'general' (pip_flower/rounds/loop.py:187 in _merge_training)"
    assert not raised.passing


def test_a_run_whose_process_vanished_has_no_exception_of_its_own() -> None:
    assert raised_by_app(SERVER_LOG.partition("\x1b[91mERROR")[0]) is None


def test_trouble_with_the_network_says_nothing_about_the_app() -> None:
    log = SERVER_LOG.replace("KeyError: 'general'", "httpx.ConnectError: [Errno 111] Connection refused")
    raised = raised_by_app(log)
    assert raised is not None
    assert raised.passing
