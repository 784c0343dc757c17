"""GLFC and LGA, which builds on it: `glfc.py` and `lga.py` are the methods.

`compensation.py` has the weights of samples, `changes.py` how a client notices a new task, `prototypes.py`
and `encoder.py` what it then sends, and `proxy.py` what the server makes of it.
"""

from pip_flower.method.registry import register
from pip_flower.methods.glfc.glfc import GLFC, GLFCOptions
from pip_flower.methods.glfc.lga import LGA, LGAOptions

_SENDS = "gradients of a disturbed image of each new class, from which the server rebuilds images"

register(
    "glfc",
    title="GLFC: gradients balanced between old and new",
    options=GLFCOptions,
    method=GLFC,
    keeps="exemplar images",
    sends=_SENDS,
)
register(
    "lga",
    title="LGA: gradients balanced between all tasks",
    options=LGAOptions,
    method=LGA,
    keeps="exemplar images",
    sends=f"{_SENDS}; the variance of features in the first task",
)
